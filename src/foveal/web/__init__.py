"""Parts of HTTP servers that several applications share: headers, errors, bodies, sockets."""
