"""A built wheel, installed outside the checkout, has all that its commands need."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from dukou.store import database

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the wheel's packages and nothing of the checkout."""
    work = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(work), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, cwd=work)
    [wheel] = work.glob("*.whl")
    target = work / "packages"
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, cwd=work)
    return target


def run(installed, folder, *arguments, **environ):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed), **environ},
        capture_output=True,
        text=True,
    )


def test_it_puts_nothing_generic_into_site_packages(installed):
    packages = {path.name for path in installed.iterdir() if path.is_dir() and "." not in path.name}
    assert packages - {"bin"} == {"dukou", "gateway", "learner"}


def test_dukou_migrate_makes_every_table_and_view(installed, tmp_path, empty_database_url):
    done = run(installed, tmp_path, "-m", "dukou", "migrate", "--url", empty_database_url)
    assert done.returncode == 0, done.stderr
    engine = database.engine_at(empty_database_url)
    with engine.connect() as connection:
        assert connection.scalar(text("select count(*) from funnel")) is not None
    engine.dispose()


def test_the_gateway_serves_and_the_learner_tells_its_status(installed, tmp_path, database_url):
    where = {"DATABASE_URL": database_url, "DUKOU_STATE_DIR": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = subprocess.Popen(
        [sys.executable, "-m", "gateway", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed), **where},
        stderr=subprocess.DEVNULL,
    )
    try:
        transport = httpx.HTTPTransport(retries=100)
        with httpx.Client(transport=transport, timeout=30) as client:
            assert client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    finally:
        gateway.terminate()
        gateway.wait(30)
    status = run(installed, tmp_path, "-m", "learner", "status", **where)
    assert status.returncode == 0, status.stderr


def test_the_rubrics_come_along(installed, tmp_path):
    code = "from learner.score import judge; print(judge.__file__, bool(judge.load('default@2')))"
    done = run(installed, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
    assert done.stdout.endswith("True\n")
