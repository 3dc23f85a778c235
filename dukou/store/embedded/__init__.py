"""A Postgres of one's own, without setup: private to this state folder, reached over a unix socket only.

    url = ensure_running(Path(".dukou"))

`<state>/postgres/` holds `data/`, `server.log`, `lock`, `socket_folder` (where the socket lies) and, if an
operator puts it there, `local.conf` with settings that win over Dukou's.
"""

from dukou.store.embedded.binaries import EmbeddedError
from dukou.store.embedded.server import ensure_running, is_running, stop

__all__ = ["EmbeddedError", "ensure_running", "is_running", "stop"]
