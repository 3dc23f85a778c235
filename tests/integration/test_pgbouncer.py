"""pgbouncer in transaction mode (D7): every statement may meet another server connection."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from dukou.store import database, states
from dukou.store.states import Stage
from tests.fakes.ferry import Ferry
from tests.fakes.spooled import user
from tests.fakes.turns import add_turn

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")


@pytest.fixture
def pooled_url(tmp_path_factory: pytest.TempPathFactory, database_url: str) -> Iterator[str]:
    """The test's database through a pooler with five server connections."""
    folder = tmp_path_factory.mktemp("pgb")
    where = make_url(database_url)
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npooled = host={where.query['host']} dbname={where.database} user={where.username}\n"
        f"[pgbouncer]\npool_mode = transaction\ndefault_pool_size = 5\nauth_type = any\nlisten_addr =\n"
        f"unix_socket_dir = {folder}\nlisten_port = 6432\nmax_client_conn = 200\n"
        "server_reset_query =\nignore_startup_parameters = extra_float_digits\n"
    )
    owner = _same_owner(folder, Path(str(where.query["host"])))
    process = subprocess.Popen(
        [PGBOUNCER or "", str(settings)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **owner
    )
    _wait_until_it_listens(process)
    yield f"postgresql+psycopg://{where.username}@/pooled?host={folder}&port=6432"
    process.terminate()
    process.communicate()


def _same_owner(folder: Path, socket_folder: Path) -> dict[str, int]:
    """pgbouncer refuses to run as root: then it runs as whoever runs the server."""
    if os.geteuid() != 0:
        return {}
    server = (socket_folder / ".s.PGSQL.5432").stat()
    for path in (folder, *folder.iterdir()):
        os.chown(path, server.st_uid, server.st_gid)
    socket_folder.chmod(socket_folder.stat().st_mode | 0o011)
    for path in (*folder.parents, *socket_folder.parents):
        if path.stat().st_mode & 0o011 != 0o011:
            path.chmod(path.stat().st_mode | 0o011)
    return {"user": server.st_uid, "group": server.st_gid}


def _wait_until_it_listens(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "process up" in line:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return
    pytest.fail(said)


def test_drainer_and_scorers_work_through_it(tmp_path: Path, pooled_url: str) -> None:
    engine = database.engine_at(pooled_url, pool_size=16, max_overflow=0)
    database.check(engine)
    ferry = Ferry(tmp_path, engine)
    for number in range(30):
        ferry.say([user(f"{number}")])
    assert ferry.drain() == 30
    with engine.begin() as connection:
        for number in range(1, 101):
            add_turn(connection, number, Stage.SCORABLE)

    def score(owner: str) -> int:
        done = 0
        while True:
            with engine.begin() as connection:
                claim = states.claim_scorable(connection, owner, 60)
            if claim is None:
                return done
            with engine.begin() as connection:
                states.finish(connection, claim, Stage.SCORED, None)
            done += 1

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(score, [f"scorer-{number}" for number in range(16)])) == 100
    with engine.connect() as connection:
        assert connection.scalar(text("select count(*) from turn_states where stage = 'scored'")) == 100
        assert connection.scalar(text("select count(*) from pg_prepared_statements")) == 0
    engine.dispose()


def test_migrations_run_through_it(pooled_url: str) -> None:
    database.upgrade(pooled_url)
