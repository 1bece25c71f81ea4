"""What holds whatever comes, is measured, goes and fails: each part has one aggregator, and limits are kept."""

from __future__ import annotations

from typing import Any

from aggregation_cases import (
    AssignerScenario,
    arrivals,
    asked,
    ended,
    gone,
    lost,
    measured,
    node,
    offered,
    placed,
    running,
    submitted,
    unreachable,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_log import (
    AggregationAssigned,
    AggregationLeft,
    AggregatorsAllocated,
    AggregatorsRecycled,
    AnyEvent,
    NodeDrained,
    NodeResumed,
)
from penstock_log.aggregation_facts import node_of
from penstock_policies.aggregation import AggregatorLoad, Task
from penstock_scheduler.aggregation.aggregation_table import AggregationRun
from sweeps import examples

NODES = ("n1", "n2", "n3")
NUMBERS = st.integers(0, 7)

acts = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"), st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from(["shared", "own"]))
        ),
        st.tuples(st.just("submit"), st.tuples(st.integers(1, 2), st.integers(1, 3), st.just("shared"))),
        st.tuples(
            st.just("measure"),
            st.tuples(NUMBERS, st.sampled_from([0.5, 1.0, 1.05, 2.0, 3.1]), st.sampled_from([0.01, 0.1, 0.3, 0.6])),
        ),
        st.tuples(st.sampled_from(["copy", "end", "again", "leave", "kill", "cut", "run"]), NUMBERS),
        st.tuples(st.sampled_from(["lose", "join", "restart", "drain", "resume"]), st.sampled_from(NODES)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 40.0])),
    ),
    min_size=4,
    max_size=24,
)


class World:
    """Nodes with two places each, whose agents make true what the assigner decides."""

    def __init__(self) -> None:
        self.it = AssignerScenario().nodes(n1=2, n2=2, n3=2)
        self.now_s, self.jobs, self.lives = 10.0, 0, 0
        self.generations: dict[tuple[str, int], int] = {}
        self.given_names: set[str] = set()

    def act(self, what: str, which: Any) -> None:
        self.now_s += which if what == "wait" else 1.0
        self.it.at(self.now_s)
        if which in NODES:
            self._tell_of_node(what, which)
        else:
            self._tell(what, which)
        self.settle()

    def _tell_of_node(self, what: str, node_id: str) -> None:
        gone_now = bool(self.it.state.cluster.nodes[node_id].gone)
        match what:
            case "lose":
                self.it.given(lost(node_id))
            case "join" if gone_now:
                self.it.given(node(node_id), offered(node_id, 2, self._life()))
            case "restart" if not gone_now:
                self.it.given(offered(node_id, 2, self._life()))
            case "drain":
                self.it.given(NodeDrained(at_s=self.now_s, node_id=node_id))
            case "resume":
                self.it.given(NodeResumed(at_s=self.now_s, node_id=node_id))

    def _tell(self, what: str, which: Any) -> None:
        match what:
            case "submit":
                self._submit(*which)
            case "measure":
                if (run := self._run(which[0])) is not None:
                    self.it.given(*measured(run, which[1], which[2]))
            case "kill" | "run":
                self._tell_of_aggregator(what, which)
            case "copy" | "end" | "again" | "leave" | "cut":
                if (run := self._run(which)) is not None:
                    self._tell_of_run(what, run)

    def _submit(self, servers: int, parts: int, mode: str) -> None:
        self.jobs += 1
        on = NODES[self.jobs % 3]
        name = f"j{self.jobs}"
        self.it.given(submitted(name), placed(name, nodes=(on,)))
        self.it.given(asked(name, servers=servers, parts=parts, mode=mode, nodes=(on,)))

    def _life(self) -> str:
        self.lives += 1
        return f"life{self.lives}"

    def _run(self, number: int) -> AggregationRun | None:
        runs = list(self.it.state.table.runs.values())
        return runs[number % len(runs)] if runs else None

    def _tell_of_aggregator(self, what: str, number: int) -> None:
        names = [name for name, one in self.it.state.table.aggregators.items() if not one.gone]
        if names:
            name = names[number % len(names)]
            self.it.given(running(name) if what == "run" else gone(name, at_s=self.now_s))

    def _tell_of_run(self, what: str, run: AggregationRun) -> None:
        epoch, on = run.epoch, run.nodes[0]
        match what:
            case "copy":
                self.it.given(*arrivals(run))
            case "end":
                self.it.given(ended(run.job_id, epoch=epoch, node=on))
            case "again":
                self.it.given(ended(run.job_id, "preempted", epoch=epoch, node=on))
                self.it.given(placed(run.job_id, epoch=epoch + 1, nodes=(on,)))
                again = asked(run.job_id, epoch=epoch + 1, servers=run.servers, parts=len(run.parts), nodes=(on,))
                self.it.given(again)
            case "leave":
                self.it.given(AggregationLeft(at_s=self.now_s, node_id=on, job_id=run.job_id, epoch=epoch))
            case "cut" if run.aggregators and epoch == 1:
                self.it.given(unreachable(run.aggregators[-1], run.job_id, run.generation, on))

    def settle(self) -> None:
        for fact in self.it.settle():
            self.check_fact(fact)
            if isinstance(fact, AggregatorsAllocated) and self.jobs % 4:  # every fourth never starts
                self.it.given(*(running(name) for name in fact.aggregators))
            if isinstance(fact, AggregatorsRecycled):
                self.it.given(*(gone(name, "recycled", self.now_s) for name in fact.aggregators))
        for fact in self.it.settle():
            self.check_fact(fact)
        self.check()

    def check_fact(self, fact: AnyEvent) -> None:
        """Check that generations only rise, and that no name is given twice."""
        if isinstance(fact, AggregationAssigned):
            key = (fact.job_id, fact.epoch)
            assert fact.generation > self.generations.get(key, 0)
            self.generations[key] = fact.generation
            assert [one.part for one in fact.placed] == list(range(len(fact.placed)))
        if isinstance(fact, AggregatorsAllocated):
            assert not self.given_names.intersection(fact.aggregators)
            self.given_names.update(fact.aggregators)

    def check(self) -> None:
        table = self.it.state.table
        holders = table.holders()
        for run in table.runs.values():
            if run.stage != "packed":
                shared = [name for name in run.aggregators if holders[name] != [run.job_id]]
                assert not shared, f"{run.job_id} has {shared} to itself"
        for node_id, agent in table.agents.items():
            assert table.used(node_id) <= max(agent.most, 2)
        homeless = [
            run
            for run in table.runs.values()
            if not all(table.serves(name) and name not in run.avoids for name in run.aggregators)
        ]
        if homeless:
            room = self.it.state.cluster.nodes.values()
            full = all(
                one.gone or one.drained or table.used(one.id) >= 2 or table.agents[one.id].until_s > self.now_s
                for one in room
            )
            assert full or any(run.stage == "packed" for run in homeless), "a part waits though there is room"
        for name in {name for run in table.runs.values() for name in run.aggregators if run not in homeless}:
            assert not self.it.state.cluster.nodes[node_of(name)].gone

    def loads(self) -> dict[str, AggregatorLoad]:
        """Return what each shared aggregator has to do."""
        runs = [run for run in self.it.state.table.runs.values() if run.stage == "packed"]
        alone_s = {run.job_id: run.alone_s for run in runs}
        tasks: dict[str, list[Task]] = {}
        for run in runs:
            for one in run.placed:
                if self.it.state.table.serves(one.aggregator):
                    tasks.setdefault(one.aggregator, []).append(Task(run.job_id, one.part, run.cost_s(one.part)))
        return {name: AggregatorLoad(tuple(held), alone_s) for name, held in tasks.items()}


@settings(max_examples=examples(60), deadline=None)
@given(acts)
def test_each_part_has_one_aggregator_and_what_is_to_be_alone_is_alone(history: list[tuple[str, Any]]) -> None:
    world = World()
    for what, which in history:
        world.act(what, which)
    world.it.decision()


@settings(max_examples=examples(40), deadline=None)
@given(acts)
def test_limits_are_kept_once_all_has_come_to_rest(history: list[tuple[str, Any]]) -> None:
    world = World()
    for what, which in history:
        world.act(what, which)
    for node_id in NODES:
        world.act("join", node_id)
        world.act("resume", node_id)
    for job in list(world.it.state.table.runs.values())[2:]:
        world._tell_of_run("end", job)
    for _ in range(12):
        world.act("wait", 200.0)
        world.it.copy_all()
        world.settle()
    assert not world.it.settle()
    for name, load in world.loads().items():
        assert load.within(0.1), f"{name} has {load.busy_s} s in a cycle of {load.cycle_s} s, loss {load.worst_loss}"
