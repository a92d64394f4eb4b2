"""What the service does with input data where nobody has written it down: each rule a named default with a switch.

Every rule stands for one statement that the container contract (section 3 and open questions 2 to 6) marks as unsure.
``docs/data.md`` lists them; ``--data-rule NAME=VALUE`` changes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hotfire.runtime.channel_parts import closest
from hotfire.runtime.errors import ValidationError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """``values`` begins with the default; one written ``SECONDS`` is a number."""

    name: str
    values: tuple[str, ...]
    meaning: str
    source: str


RULES: tuple[Rule, ...] = (
    Rule(
        name="prefix-cut",
        values=("last-slash", "prefix"),
        meaning="what a key loses when the prefix is a part of a name: all up to its last slash, or the prefix",
        source="contract 3.2, open question 5",
    ),
    Rule(
        name="folder-markers",
        values=("directory", "skip"),
        meaning="a key that ends in a slash makes an empty directory, or nothing",
        source="contract 3.2",
    ),
    Rule(
        name="manifest-path",
        values=("key", "relative"),
        meaning="where an object of a ManifestFile lies in the channel: at its whole key, or below the manifest's prefix",
        source="contract 3.3, open question 4",
    ),
    Rule(
        name="shards",
        values=("round-robin", "contiguous"),
        meaning="host k of n takes every n-th object, or the k-th of n runs of the list",
        source="contract 3.4, open question 2",
    ),
    Rule(
        name="file-shuffle",
        values=("off", "on"),
        meaning="in File and FastFile mode, ShuffleConfig changes which objects a host's shard has",
        source="contract 3.11",
    ),
    Rule(
        name="manifest-beside",
        values=("file", "always", "never"),
        meaning="<channel>-manifest is written for channels in File mode alone, for every one, or for none",
        source="contract 3.5",
    ),
    Rule(
        name="fastfile-shards",
        values=("on", "off"),
        meaning="ShardedByS3Key applies in FastFile mode",
        source="contract 3.6",
    ),
    Rule(
        name="pipe-next",
        values=("at-open", "at-start"),
        meaning="the next FIFO appears when the current one is opened, or one epoch ahead from the start",
        source="contract 3.7, open question 6",
    ),
    Rule(
        name="pipe-used",
        values=("unlink", "keep"),
        meaning="a FIFO is removed when its epoch is over, or stays",
        source="contract 3.7",
    ),
    Rule(
        name="pipe-timeout",
        values=("0", "SECONDS"),
        meaning="seconds after which a channel that nobody opens fails the job; 0 waits for ever",
        source="contract 3.7, open question 6",
    ),
    Rule(
        name="pipe-restart",
        values=("zero", "continue"),
        meaning="a job that restarts begins with epoch 0 again, or goes on with the epoch after the last one opened",
        source="contract 3.7",
    ),
    Rule(
        name="recordio-large",
        values=("parts", "refuse"),
        meaning="an object of 2^29 bytes or more becomes one record of several parts, or is refused",
        source="contract 3.8",
    ),
    Rule(
        name="attribute-text",
        values=("json", "bare"),
        meaning='a string of an augmented manifest enters the stream as JSON ("cat"), or without its quotes',
        source="contract 3.9",
    ),
    Rule(
        name="attribute-missing",
        values=("refuse", "fail", "skip"),
        meaning="a line without a requested attribute refuses the job, fails it when its turn comes, or is left out",
        source="contract 3.9",
    ),
)
_BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in RULES}


@dataclass(frozen=True)
class DataRules:
    """The rules of one job; those that ``chosen`` does not name have their defaults."""

    chosen: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, words: Iterable[str]) -> DataRules:
        """``NAME=VALUE`` each.

        Raises:
            ValidationError: no such rule, or it has no such value.
        """
        return cls(tuple(_choice(word) for word in words))

    def __getitem__(self, name: str) -> str:
        return dict(self.chosen).get(name, _BY_NAME[name].values[0])

    def seconds(self, name: str) -> float:
        return float(self[name])


def _choice(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    rule = _BY_NAME.get(name)
    if rule is None:
        raise ValidationError(
            f"--data-rule {word}: there is no rule {name!r}",
            do=f"Did you mean {', '.join(closest(name, list(_BY_NAME), 3))}?",
        )
    number = "SECONDS" in rule.values and value.replace(".", "", 1).isdecimal()
    if value == "SECONDS" or (value not in rule.values and not number):
        raise ValidationError(
            f"--data-rule {name} cannot be {value!r}", do=f"It is one of: {', '.join(rule.values)}."
        )
    return name, value
