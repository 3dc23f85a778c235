"""Errors: the root of all of them, their tree, and how a command that ends by one says so.

Every exception class of `gateway`, `learner`, `store` and `local` is here; a test holds the tree and the code
together. `learner.stop.Abandoned` alone is outside: it is no error and derives from BaseException, so that no
handler of errors catches it.

    DukouError
        ConfigError                    dukou.settings.load: the settings are wrong
        ExpansionError                 dukou.settings.load: a ${REFERENCE} in a setting is wrong
        DatabaseError                  dukou.errors: Postgres cannot be used now
            EmbeddedError              dukou.store.embedded.binaries: the embedded Postgres cannot run here
            PostgresUnreachableError   dukou.store.postgres_errors: no server answers
            SchemaError                dukou.store.postgres_errors: the tables are missing or too old
            TableLockedError           dukou.store.postgres_errors: a migration could not lock a table in time
            UnusableUrlError           dukou.store.postgres_errors: the database URL is wrong
        ClaimLostError                 dukou.store.states: another scorer has the turn
        LeaseLostError                 dukou.store.processes: another process has the lease
        BadProbeError                  dukou.store.versions: a version's probe is malformed or unfit
        PublishingError                dukou.store.publishing: the live pointer cannot be moved like that
        RefusedVersionError            dukou.store.versions: the version was refused, or cannot be
        TenantInUseError               dukou.store.forget: a closed batch has turns of the tenant
        UnknownVersionError            dukou.store.versions: there is no such version
        GatewayError                   gateway.relay.errors: what a client is told
            BadRequestError            400
            RequestKillsEnginesError   400
            UnauthorizedError          401
            NotFoundError              404
            MethodNotAllowedError      405
            TooLargeError              413
            UnsupportedEncodingError   415
            BusyError                  429
            NoEngineError              503
            NotRecordedError           503, gateway.relay.feedback: the feedback could not be spooled
            UpstreamError              502: the engine failed
                UpstreamConnectError
                UpstreamClosedError
                UpstreamTimeoutError   504
        ClientLeftError                gateway.relay.endpoint: the client left before its request was whole
        BadRoutesError                 gateway.routes: a text is no routes file
        CorruptRecordError             gateway.spool.format: bytes of the spool are no record
        RecordError                    gateway.spool.records: a field is missing, or of a wrong type
        ControlError                   gateway.reconcile.sglang: a control call to an engine failed
            EngineUnreachableError
            HalfUpdatedError
        BadCheckpointError             gateway.reconcile.checkpoint: no engine may load the checkpoint
        UnknownDefaultsError           gateway.reconcile.engine_facts: sampling defaults are unknown
        UnreadableTensorsError         gateway.reconcile.checkpoint: a safetensors file cannot be read
        UnknownRubricError             learner.score.judge: there is no such rubric
        TrainerBusyError               learner.train.ledger: another learner trains the policy
        ExportError                    learner.train.export: trained weights cannot be served
        AlignmentError                 learner.hints.teacher_engine: two tokenizations do not meet
        CannotRenderError              learner.hints.template: a conversation does not render as recorded
            ControlTokensError
        TeacherEngineError             learner.hints.teacher_engine: the teacher's engine cannot be used
        EngineDiedError                dukou.local.engine.start: the engine ended before it was ready
        InstallError                   dukou.local.engine.install: the engine's environment could not be made

What the driver raises (SQLAlchemy's DBAPIError) stays as it is; `dukou.store.postgres_errors` tells what
it means.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ClassVar, ParamSpec

P = ParamSpec("P")


class DukouError(Exception):
    """An error of Dukou's own. Its message is for a person, and holds no password and no key."""

    #: Of a command that ends by this error.
    exit_status: ClassVar[int] = 1


class DatabaseError(DukouError):
    """Postgres cannot be used now; the message says what would help."""


def reports_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Makes a command's `main` print an error that ends it on stderr, without a traceback.

    Covers DukouError, which also gives the exit status, and the driver's errors of Postgres (status 1).
    Anything else is a fault in the code and keeps its traceback.
    """

    @wraps(main)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except DukouError as error:
            print(error, file=sys.stderr)
            return error.exit_status
        except Exception as error:  # the boundary of the command; the driver is not imported to print --help
            from dukou.store.postgres_errors import POSTGRES_ERRORS, line_of

            if not isinstance(error, POSTGRES_ERRORS):
                raise
            print(line_of(error), file=sys.stderr)
            return 1

    return reporting
