"""What the demo shows at its end, computed from Postgres alone: a table, a plot and one line of JSON.

How likely the base model itself finds the demo's answers: the guard against a wish met by gibberish.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text

from dukou.local.demo import wish

QUESTIONS = text("""
    select messages->0->>'content' as question, response_text, policy_version_min as version
    from turn
    where endpoint = '/v1/chat/completions' and status = 'ok' and json_array_length(messages) = 1
      and (sampling->>'temperature')::float > 0
    order by started_at, id
""")
COUNTS = text("""
    select (select count(*) from turns) as turns,
           (select count(*) from turn_states where stage = 'trained') as samples
""")
PUBLISHED = text("""
    select v.version, s.metrics->>'reward/mean' as reward, s.metrics->>'kl/mean' as kl,
           p.reported_version as reported, p.probe->>'mean_abs_diff' as probe
    from versions v
    left join steps s using (policy_id, version)
    left join lateral (
        select * from publications
        where policy_id = v.policy_id and version = v.version and status = 'loaded'
        order by id desc limit 1
    ) p on true
    order by v.version
""")
PROGRESS = text("""
    select (select count(*) from turns) as turns,
           (select count(*) from turn_states where stage = 'trained') as trained,
           coalesce((select max(live_version) from policies), 0) as version
""")
BEHIND = text("""
    select count(*) from policies p
    where not exists (select from engines e where e.state = 'ready' and e.version = p.live_version)
""")


@dataclass(frozen=True, slots=True)
class Progress:
    turns: int
    trained: int
    version: int


@dataclass(frozen=True, slots=True)
class Rate:
    met: int
    n: int

    @property
    def share(self) -> float:
        return self.met / self.n if self.n else math.nan

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of a binomial proportion."""
        if not self.n:
            return (math.nan, math.nan)
        z = 1.96
        centre = (self.share + z * z / (2 * self.n)) / (1 + z * z / self.n)
        half = (
            z
            * math.sqrt(self.share * (1 - self.share) / self.n + z * z / (4 * self.n**2))
            / (1 + z * z / self.n)
        )
        # Of none or all it begins or ends at the share itself, but for the last bit.
        return (min(self.share, centre - half), max(self.share, centre + half))

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.share:.2f} [{low:.2f}, {high:.2f}] ({self.met}/{self.n})"


@dataclass(frozen=True, slots=True)
class Asked:
    version: int
    met: bool


@dataclass(frozen=True, slots=True)
class Published:
    """A version and what is known of it; figures as Postgres prints them, None where there are none."""

    version: int
    reward: str | None
    kl: str | None
    reported: str | None
    probe: str | None

    @property
    def is_served(self) -> bool:
        """Whether an engine said that it had this version."""
        return self.reported == str(self.version)


@dataclass(frozen=True, slots=True)
class Report:
    turns: int
    samples: int
    asked: tuple[Asked, ...]
    published: tuple[Published, ...]

    @property
    def trained(self) -> int:
        """How many versions there are besides the base model."""
        return sum(p.version > 0 for p in self.published)

    @property
    def versions(self) -> int:
        """How many of these an engine served."""
        return sum(p.version > 0 and p.is_served for p in self.published)

    @property
    def first(self) -> Rate:
        return rate(a.met for a in self.asked[: len(self.asked) // 3])

    @property
    def last(self) -> Rate:
        return rate(a.met for a in self.asked[len(self.asked) - len(self.asked) // 3 :])

    def by_version(self) -> dict[int, Rate]:
        versions = sorted({a.version for a in self.asked})
        return {v: rate(a.met for a in self.asked if a.version == v) for v in versions}


def rate(met: Iterable[bool]) -> Rate:
    outcomes = list(met)
    return Rate(sum(outcomes), len(outcomes))


def progress(database: Engine) -> Progress:
    """Raises sqlalchemy's OperationalError while Postgres is away."""
    with database.connect() as connection:
        return Progress(*connection.execute(PROGRESS).one())


def is_served(database: Engine) -> bool:
    """Whether an engine serves the live version. Raises as `progress` does."""
    with database.connect() as connection:
        return not connection.scalar(BEHIND)


def read(database: Engine) -> Report:
    """All facts as of one moment: everything that is shown follows from them."""
    with database.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        rows = connection.execute(QUESTIONS).all()
        counts = connection.execute(COUNTS).one()
        published = tuple(Published(*row) for row in connection.execute(PUBLISHED))
    asked = tuple(
        Asked(row.version, wish.is_met(row.response_text, topic))
        for row in rows
        if row.version is not None and (topic := wish.topic_of(row.question)) is not None
    )
    return Report(counts.turns, counts.samples, asked, published)


def table(report: Report) -> str:
    """Preference met and training figures, a line a version, and how many the engine served."""
    row = "{:>7}  {:<28} {:>7} {:>7} {:>11} {:>11}".format
    rates = report.by_version()
    lines = [row("version", "answered as wished (95%)", "reward", "kl", "engine says", "probe, nats")]
    for p in report.published:
        met = str(rates[p.version]) if p.version in rates else "-"
        lines.append(
            row(
                p.version,
                met,
                figure(p.reward, "+.2f"),
                figure(p.kl, ".3f"),
                p.reported or "-",
                figure(p.probe, ".3f"),
            )
        )
    lines.append(f"{report.trained} versions were trained, and the engine served {report.versions} of them")
    return "\n".join(lines)


def figure(value: str | None, form: str) -> str:
    return format(float(value), form) if value is not None else "-"


def plot(report: Report, path: Path) -> None:
    """Share of answers as wished, per version, with 95% intervals."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rates = report.by_version()
    shares = [r.share for r in rates.values()]
    low = [r.share - r.interval()[0] for r in rates.values()]
    high = [r.interval()[1] - r.share for r in rates.values()]
    figure, axes = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axes.errorbar(list(rates), shares, yerr=[low, high], marker="o", capsize=3)
    axes.set(xlabel="policy version that answered", ylabel="answered as wished", ylim=(0, 1))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def under_base(model_path: Path, asked: list[tuple[str, str]]) -> float:
    """exp of the mean negative log-likelihood of the answers' tokens, each after its question.

    Text is tokenised here on purpose: this measures text as a reader sees it, and trains nothing.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from learner.train.model import compute_dtype, multiplies_bfloat16

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine are far slower than one
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    dtype = compute_dtype(torch.bfloat16, "cpu", multiplies_bfloat16())
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype).eval()
    total, tokens = 0.0, 0
    for question, answer in asked:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = tokenizer(answer, add_special_tokens=False).input_ids
        if not answer_ids:
            continue
        ids = torch.tensor([prompt_ids + answer_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt_ids) - 1 : -1].float()
        total -= logits.log_softmax(-1).gather(1, ids[0, len(prompt_ids) :, None]).sum().item()
        tokens += len(answer_ids)
    return math.exp(total / tokens) if tokens else math.nan
