"""What is kept of a request with a key: enough to find its answer in the charges again.

Two numbers, however many queries it had: which charges were on record when its turn came, and which
is the last that it paid. What became of each query follows from these, since queries are decided in
order (`admission.admit`): one that was not paid was exhausted if the project could still pay for a
query then, and was refused otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.charging.admission import EXHAUSTED, REFUSED
from terrine_server.ledger.records import QueryDigest, Recorded, Result


@dataclass(frozen=True)
class Kept:
    """The charges up to `before` were on record; those after it, up to `last`, are its own."""

    before: int
    last: int

    def results(
        self,
        asked: Sequence[QueryDigest],
        recorded: Recorded,
        together: Collection[int | None],
        allowed: int = 0,
    ) -> list[Result]:
        """Return the results of the queries `asked`. Raises ValueError if these are not theirs.

        `together`: the charges of the transaction that kept this. It contains every charge that
        the request paid. A query that was not paid may have been paid later, so not in it.
        `allowed`: how many queries the project answers, if queries can be exhausted.
        """
        upto, results = self.before, []
        for digest in asked:
            own = recorded.queries.get(digest.query)
            answer = recorded.answered_inputs.get(digest.input)
            found = [result for result in (own, answer) if result is not None]
            known = next((r for r in found if r.seq is not None and r.seq <= upto), None)
            if known is not None:
                results.append(replace(known, replayed=True))
            elif own is not None and own.seq is not None and own.seq <= self.last:
                if own.seq not in together:
                    raise ValueError("paid by another request")
                upto = own.seq
                results.append(replace(own, replayed=False))
            else:
                _check_unpaid(found, self.last, together)
                results.append(EXHAUSTED if upto < allowed else REFUSED)
        if upto != self.last:
            raise ValueError("a charge of other queries")
        return results


def keep(results: Sequence[Result], before: int) -> Kept:
    """Return what is kept of results, when `before` is the last charge before the request's turn.

    Where the request paid, its own charges say it exactly.
    """
    paid = [r.seq for r in results if r.seq is not None and not r.replayed]
    return Kept(paid[0] - 1, paid[-1]) if paid else Kept(before, before)


def written(kept: Kept) -> str:
    """Return the text that is stored."""
    return canonical_json({"before": kept.before, "last": kept.last})


def read(text: str) -> Kept:
    """Read what is stored. Raises ValueError or TypeError for what was never written."""
    kept = json.loads(text)
    if not isinstance(kept, dict) or set(kept) != {"before", "last"}:
        raise TypeError("not two numbers")
    if any(type(number) is not int for number in kept.values()):
        raise TypeError("not two whole numbers")
    if not 0 <= kept["before"] <= kept["last"] or not kept["last"]:
        raise ValueError("a request of which nothing was answered keeps no key")
    return Kept(kept["before"], kept["last"])


def _check_unpaid(found: Collection[Result], newest: int, together: Collection[int | None]) -> None:
    """Raise ValueError if a query that was not paid was answered by then."""
    if any(r.seq in together or r.seq is None or r.seq <= newest for r in found):
        raise ValueError("not paid, and yet answered before")
