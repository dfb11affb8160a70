"""Store of sessions in a PostgreSQL database, for servers on several machines; needs `foveal[postgres]`."""
