"""What the fault bench is made of: an engine, clients, a proxy before Postgres, the processes, the faults."""
