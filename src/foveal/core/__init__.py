"""The engine of Foveal: pure and synchronous, without clock, disk, network, environment or logging."""
