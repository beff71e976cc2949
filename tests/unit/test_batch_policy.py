"""Whether large calls are joined or run one after another: the better way is found and kept."""

from __future__ import annotations

from shmgpu.helper import batch_policy


def run(strategy, times, joined_ns, apart_ns, copies_ns):
    """Let a strategy choose so often, on a machine where both take so long a call; its choices."""
    chosen = []
    for _ in range(times):
        chosen.append(strategy.is_joined())
        if chosen[-1]:
            strategy.was_joined(4, 4 * joined_ns, 4 * copies_ns)
        else:
            strategy.was_apart(4, 4 * apart_ns)
    return chosen


def test_a_batch_that_copies_little_of_its_time_is_always_joined():
    assert all(run(batch_policy.Strategy(), 5000, joined_ns=1000, apart_ns=1, copies_ns=190))


def test_calls_that_are_sooner_done_one_after_another_are():
    chosen = run(batch_policy.Strategy(), 5000, joined_ns=1000, apart_ns=500, copies_ns=500)
    assert chosen[0] and not any(chosen[1:9])
    assert 1 < sum(chosen) < 20  # and the other way is tried again, less and less often


def test_calls_that_are_sooner_done_joined_are():
    chosen = run(batch_policy.Strategy(), 5000, joined_ns=1000, apart_ns=3000, copies_ns=500)
    assert not chosen[1] and all(chosen[2:9])
    assert 1 < chosen.count(False) < 20


def test_what_has_changed_is_noticed():
    strategy = batch_policy.Strategy()
    assert sum(run(strategy, 200, joined_ns=1000, apart_ns=500, copies_ns=500)) < 10
    assert sum(run(strategy, 2000, joined_ns=1000, apart_ns=9000, copies_ns=500)) > 1800
    assert all(run(strategy, 200, joined_ns=1000, apart_ns=1, copies_ns=0)[20:])


def test_each_kind_has_its_own_way_and_about_as_many_calls_share_one():
    known = batch_policy.BatchPolicy()
    assert known.strategy(1, b"a", 4) is known.strategy(1, b"a", 7)
    others = [known.strategy(2, b"a", 4), known.strategy(1, b"b", 4), known.strategy(1, b"a", 8)]
    assert known.strategy(1, b"a", 4) not in others


def test_a_child_that_makes_up_kinds_fills_no_memory():
    known = batch_policy.BatchPolicy()
    for number in range(10 * batch_policy.MOST_KINDS):
        known.strategy(1, b"%d" % number, 2)
    assert len(known._strategies) <= batch_policy.MOST_KINDS
    assert known.strategy(1, bytes(batch_policy.MOST_KIND + 1), 2) is None
