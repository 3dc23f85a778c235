"""`python -m learner [run|score|batch|train|publish|rollback|pin|versions|calibrate|status]`.

Nothing heavy is imported before the arguments are read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dukou.errors import reports_errors

STAGES = {
    "run": "score, batch, train and publish, for ever (the default)",
    "score": "only judge turns whose next state is known; any number of these may run",
    "batch": "only close batches",
    "train": "only train closed batches",
    "publish": "only make the newest trained version live",
}

MOVES = {
    "rollback": "make the version live again that was live before",
    "pin": "keep a version live: nothing automatic replaces it until --off",
    "versions": "the tree of versions: what is live, what was refused and why",
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
            stage.add_argument(
                "--share", type=float, metavar="S", help="only for this share of the sessions (0.1), then end"
            )
        if verb == "score":
            _add_window(stage)
            stage.add_argument("--rubric", metavar="NAME", help="judge history by this one")
            stage.add_argument("--judge", choices=("llm", "rules"), help="judge history with this kind")
    _add_moves(verbs, common)
    text = "how far judges agree with feedback and with each other: agreement, confusion, Cohen's kappa"
    calibrate = verbs.add_parser("calibrate", help=text, description=text, parents=[common])
    _add_window(calibrate)
    calibrate.add_argument("--json", action="store_true", help="for machines")
    text = "what was seen, recorded, scored and trained, and what the learner waits for"
    status = verbs.add_parser("status", help=text, description=text, parents=[common])
    status.add_argument("--json", action="store_true", help="for machines")
    status.add_argument("--watch", action="store_true", help="again every two seconds")
    return top


def _add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", type=_moment, metavar="TIME", help="turns from this ISO time (UTC) on")
    parser.add_argument("--until", type=_moment, metavar="TIME", help="turns before this ISO time (UTC)")


def _of_history(arguments: argparse.Namespace) -> bool:
    return any((arguments.since, arguments.until, arguments.rubric, arguments.judge))


def _moment(said: str) -> object:
    from learner.commands import moment

    return moment(said)


def _add_moves(verbs: Any, common: argparse.ArgumentParser) -> None:
    """Adds the verbs that work on existing versions."""
    rollback = verbs.add_parser("rollback", help=MOVES["rollback"], parents=[common])
    rollback.add_argument("--to", type=int, metavar="N", help="this version; default: what was live before")
    rollback.add_argument("--because", metavar="TEXT", help="kept with the version that is left")
    pin = verbs.add_parser("pin", help=MOVES["pin"], parents=[common])
    which = pin.add_mutually_exclusive_group()
    which.add_argument("version", type=int, nargs="?", metavar="N", help="default: the live one")
    which.add_argument("--off", action="store_true", help="automatic publishing goes on")
    listing = verbs.add_parser("versions", help=MOVES["versions"], parents=[common])
    listing.add_argument("--json", action="store_true", help="for machines")


@reports_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the verb; no verb means `run`. Returns the exit status."""
    arguments = parser().parse_args(_with_verb(sys.argv[1:] if argv is None else argv))
    from dukou.settings.load import load

    loaded = load(arguments.config)
    loaded.warn()
    config = loaded.config
    if arguments.verb == "status":
        from learner.status.read import show

        return show(loaded, as_json=arguments.json, watch=arguments.watch)
    named = arguments.verb == "publish" and (arguments.version, arguments.share) != (None, None)
    if named or arguments.verb in MOVES:
        from learner.commands import run

        return run(config, arguments)
    if arguments.verb == "calibrate":
        from learner.commands import calibrate

        return calibrate(config, arguments)
    if arguments.verb == "score" and _of_history(arguments):
        from learner.commands import rescore

        return rescore(config, arguments)
    from learner.runtime import start

    return start(loaded, arguments.verb, once=arguments.once)


def _with_verb(argv: Sequence[str]) -> list[str]:
    """`run` where no verb is given, also before its options."""
    first = argv[0] if argv else "run"
    if first in (*STAGES, *MOVES, "status", "calibrate", "-h", "--help"):
        return list(argv) or ["run"]
    return ["run", *argv]
