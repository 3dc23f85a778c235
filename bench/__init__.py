"""Side-by-side measurements. Each prints a table on stderr and one line of JSON last on stdout."""
