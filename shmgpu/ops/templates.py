"""Templates: what was recorded once for a structure is recorded again without asking the rules.

The gradient of a graph, or a step of an optimiser, follows from the structure of what it is given.
So it is recorded by the rules once; a template keeps the operations and what they read, and makes
the same nodes anew of other nodes in the same places. Owns that memory, and what it must not keep:
what depends on a value. Never looks at elements, and never decides which structures are equal: who
asks gives a key that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from shmgpu.ops.graph import Node, Op, Params, Scalar, Spec, native, next_number

MAX_STEPS = 1 << 18  # of all templates that a store keeps

# An operation, the places of its inputs, its params, its spec; or no operation and a plain number.
Step = tuple[Op | None, tuple[int, ...], Params, Spec, Scalar | None]


class _Steps:
    """Operations on nodes that are known by their places: what was given first, then what was made.

    Attributes:
        steps: what is made, in order.
        results: places of what it is for.
    """

    __slots__ = ("results", "steps")

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        self.steps = tuple(steps)
        self.results = tuple(results)

    def instantiate(self, given: Sequence[Node]) -> list[Node]:
        """The results, of nodes of the same structure."""
        nodes = list(given)
        append = nodes.append
        for op, inputs, params, spec, value in self.steps:
            append(Node(op, tuple([nodes[place] for place in inputs]), params, spec, value))
        return [nodes[place] for place in self.results]


if not TYPE_CHECKING and native is not None:
    _Steps = native.Template


class Template(_Steps):
    """What was recorded once of nodes of one structure."""

    __slots__ = ()

    @classmethod
    def of(cls, given: Sequence[Node], results: Sequence[Node], since: int) -> Template | None:
        """What made these results of what was given; None where it cannot be done again.

        That is where it draws from something older (of a number up to ``since``) that was not
        given, has gradients itself, or took the value of a plain number that was.
        """
        places = {node: place for place, node in enumerate(given)}
        numbers = {id(node.value) for node in given if type(node.value) is Scalar}
        made: set[Node] = set()
        stack = [node for node in results if node not in places]
        while stack:
            node = stack.pop()
            if node in made:
                continue
            made.add(node)
            value = node.value
            if node.number <= since or node.needs_grad:
                return None
            if node.op is None:
                if type(value) is not Scalar or value.source is not None or id(value) in numbers:
                    return None
            elif value is not None:
                return None
            stack += [one for one in node.inputs if one not in places]
        steps: list[Step] = []
        for node in sorted(made, key=lambda node: node.number):
            places[node] = len(places)
            inputs = tuple([places[one] for one in node.inputs])
            steps.append((node.op, inputs, node.params, node.spec, node.value))
        return cls(steps, [places[node] for node in results])


class Templates:
    """A store of templates by key; all are forgotten when they become too many."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Template | None] = {}
        self._steps = 0

    def record(
        self, key: Hashable, given: Sequence[Node], make: Callable[[], Sequence[Node]]
    ) -> Sequence[Node]:
        """What ``make()`` records of the nodes given, by the template of that key if there is one.

        ``make`` is called without grad mode. It must look at nothing of what is given that the key
        does not tell.
        """
        known = self._known
        template = known.get(key)
        if template is not None:
            return template.instantiate(given)
        if key in known:
            return make()
        since = next_number()
        results = make()
        template = Template.of(given, results, since)
        count = 1 + (len(template.steps) if template is not None else 0)
        if self._steps + count > MAX_STEPS:
            known.clear()
            self._steps = 0
        self._steps += count
        known[key] = template
        return results
