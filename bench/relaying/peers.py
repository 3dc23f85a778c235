"""The gateways that the benchmark compares: each is started on a port of its own, before one upstream."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.relaying.measure import ToolError

#: Peers from PyPI, each in an environment of its own: their pins disagree with ours.
PACKAGES = {"sglang_router": "sglang-router==0.3.2", "litellm": "litellm[proxy]==1.106.12"}
_START_SECONDS = 90.0
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 1000000;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(slots=True)
class Process:
    """A server that was started for the benchmark. As a context it is stopped at the end."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(
    name: str, command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
) -> Process:
    """Starts a server and waits until its port is open; port 0: it has none. Raises ToolError."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=_ROOT, env={**os.environ, **(environment or {})}
        )
    started = Process(name, port, process, log)
    deadline = time.monotonic() + _START_SECONDS
    while port and not _is_open(port):
        if process.poll() is not None or time.monotonic() > deadline:
            started.__exit__()
            raise ToolError(f"{name} did not start: {log}")
        time.sleep(0.05)
    return started


def peer(name: str, upstream: int, folder: Path) -> Process | None:
    """Starts a peer by its key in the results; None where it is not installed and cannot be."""
    port = free_port()
    if name == "nginx":
        return _nginx(upstream, port, folder)
    if name == "fastapi_httpx":
        command = [sys.executable, "-m", "uvicorn", "bench.relaying.httpx_relay:app", "--port", str(port)]
        command += ["--no-access-log", "--log-level", "warning"]
        return start(name, command, port, folder, {"UPSTREAM": f"http://127.0.0.1:{upstream}"})
    programs = _installed(name, folder)
    if programs is None:
        return None
    if name == "sglang_router":
        command = [str(programs / "python"), "-m", "sglang_router.launch_router", "--policy", "random"]
        command += [
            "--worker-urls",
            f"http://127.0.0.1:{upstream}",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += ["--prometheus-port", str(free_port()), "--log-level", "error", "--disable-health-check"]
        return start(name, command, port, folder)
    settings = folder / "litellm.json"  # JSON is YAML
    settings.write_text(json.dumps(_litellm(upstream)))
    command = [
        str(programs / "litellm"),
        "--config",
        str(settings),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    return start(
        name, command, port, folder, {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    )


def _litellm(upstream: int) -> dict[str, object]:
    model = {"model": "openai/fake", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "sk-bench"}
    # On 127.0.0.1 and without a check of keys, which would cost it time.
    general = {"dangerously_permit_weak_or_unset_master_key": True}
    return {"model_list": [{"model_name": "fake", "litellm_params": model}], "general_settings": general}


def _nginx(upstream: int, port: int, folder: Path) -> Process | None:
    program = shutil.which("nginx")
    if program is None:
        return None
    (folder / "nginx").mkdir(parents=True, exist_ok=True)
    settings = folder / "nginx" / "nginx.conf"
    settings.write_text(_NGINX.format(folder=folder / "nginx", upstream=upstream, port=port))
    return start("nginx", [program, "-c", str(settings)], port, folder)


def _installed(name: str, folder: Path) -> Path | None:
    """The programs of a peer's environment, made at first use; None, with a word, where pip fails."""
    where = folder / name.replace("_", "-")
    programs, stamp = where / "bin", where / ".installed"
    if not stamp.exists():
        print(f"installing {PACKAGES[name]} into {where}", file=sys.stderr)
        venv.create(where, with_pip=True)
        pip = [str(programs / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        if subprocess.run([*pip, PACKAGES[name]], check=False, stdout=sys.stderr).returncode:
            return None
        stamp.touch()
    return programs


def _is_open(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


_ROOT = Path(__file__).resolve().parents[2]
