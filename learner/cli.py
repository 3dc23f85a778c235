"""`python -m learner [run|score|batch|train|publish|status]`.

Nothing heavy is imported before the arguments are read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

STAGES = {
    "run": "score, batch, train and publish, for ever (the default)",
    "score": "only judge turns whose next state is known; any number of these may run",
    "batch": "only close batches",
    "train": "only train closed batches",
    "publish": "only make the newest trained version live",
}


def parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--config", type=Path, metavar="FILE", help="default: $DUKOU_CONFIG, else config.toml"
    )
    top = argparse.ArgumentParser(prog="python -m learner", description="Trains from what users did next.")
    verbs = top.add_subparsers(dest="verb", metavar="verb", required=True)
    for verb, text in STAGES.items():
        stage = verbs.add_parser(verb, help=text, description=text, parents=[common])
        stage.add_argument("--once", action="store_true", help="one round, then end")
        if verb == "publish":
            stage.add_argument("--version", type=int, metavar="N", help="this one, forward or back, then end")
    text = "what was seen, recorded, scored and trained, and what the learner waits for"
    status = verbs.add_parser("status", help=text, description=text, parents=[common])
    status.add_argument("--json", action="store_true", help="for machines")
    status.add_argument("--watch", action="store_true", help="again every two seconds")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb; no verb means `run`. Returns the exit status."""
    arguments = parser().parse_args(_with_verb(sys.argv[1:] if argv is None else argv))
    from store.config import load_config
    from store.config_error import ConfigError

    try:
        config = load_config(arguments.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.verb == "status":
        from learner.status.read import show

        return show(config, as_json=arguments.json, watch=arguments.watch)
    from learner.start import move_live, start

    if arguments.verb == "publish" and arguments.version is not None:
        return move_live(config, arguments.version)
    return start(config, arguments.verb, once=arguments.once)


def _with_verb(argv: Sequence[str]) -> list[str]:
    """`run` where no verb is given, also before its options."""
    first = argv[0] if argv else "run"
    if first in (*STAGES, "status", "-h", "--help"):
        return list(argv) or ["run"]
    return ["run", *argv]
