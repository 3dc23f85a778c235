"""A quiet, healthy Dukou as `dukou.store.funnel` would describe it; tests change one thing at a time."""

from dukou.store.funnel import Count, EngineView, Snapshot
from dukou.store.processes import DrainerDetail, Heartbeat, LearnerDetail
from dukou.store.states import Stage
from learner.status.facts import StatusSettings

URL = "http://127.0.0.1:30000"
SETTINGS = StatusSettings(
    batch_size=16, min_size=4, timeout=1800, idle_seconds=1800, dry_run=False, gateway="http://127.0.0.1:8080"
)
LEARNER = Heartbeat("learner", "waiting", None, LearnerDetail(scores=True, trains=True), 1.0)
DRAINER = Heartbeat("drainer", "draining", None, DrainerDetail(0, 0, 0), 1.0)
RECONCILER = Heartbeat("reconciler", "watching", None, None, 1.0)
ENGINE = EngineView(URL, "ready", None, 3, 1.0)
QUIET = Snapshot(
    live=(),
    recent=(Count(Stage.TRAINED, None, 40),),
    last_turn_age=90.0,
    set_aside=0,
    published=40,
    live_version=3,
    versions=(),
    engines=(ENGINE,),
    heartbeats=(DRAINER, LEARNER, RECONCILER),
    open_batch=None,
    publish_error=None,
)
