"""The embedded server's configuration files, written anew at every start."""

from pathlib import Path

HBA = "local all all trust\n"  # the socket's folder is the lock: only the server's user and root can enter it


def postgresql_conf(socket_folder: Path, local: Path) -> str:
    """postgresql.conf for one machine; `local` (an operator's own file) wins over it.

    Neither path holds a comma or a double quote (`socket_folder`, `server`), which would part a list.
    """
    return f"""# Written by Dukou at every start. Your own settings go into {local.name}, beside this folder.
listen_addresses = ''
unix_socket_directories = {_quoted(socket_folder)}
unix_socket_permissions = 0700
port = 5432
max_connections = 50
shared_buffers = '64MB'
max_wal_size = '512MB'
max_parallel_workers_per_gather = 0
fsync = on
password_encryption = 'scram-sha-256'
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
# Statements hold what users said: none of them goes into the log.
log_statement = 'none'
log_min_error_statement = 'panic'
log_min_messages = 'warning'
# A transaction that its client forgot holds back vacuum.
idle_in_transaction_session_timeout = '5min'
include = {_quoted(local)}
"""


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "''") + "'"
