"""
The application of ``penstock top``: header, keys, refreshes and commands.

One task asks the gateway once in each period, and at once where a key has changed what is seen: the counts for the
header, and what the pane on the screen shows. What is not seen is not asked for. If nobody answers, what was seen last
stays, its age is shown, and the task goes on asking. Commands run beside it; what the gateway says to them, or why it
refuses, is shown in the line at the bottom for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Input

from penstock.output_reader import OutputReader
from penstock_bus.compat import aclosing
from penstock_bus.port import BusError, ServiceError
from penstock_cli import render
from penstock_cli.top import job_page
from penstock_cli.top.cluster_watch import JobList, JobWatch
from penstock_cli.top.dialogs import QuestionDialog, TextOverlay, help_lines
from penstock_cli.top.job_columns import QueueFilter
from penstock_cli.top.line_widgets import LineBlock, LineList
from penstock_cli.top.output_lines import OutputLines
from penstock_cli.top.panes import Answerable, DevicePane, JobPane, LogPane, QueuePane, Said
from penstock_cli.top.terminal_style import STATE_STYLES, Glyphs, Line, Span, joined
from penstock_cli.value_formats import clock, now_s, span
from penstock_log import JobState, request_bodies

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import views

PANES: Final = ("devices", "queue", "job", "log")
SAID_S: Final = 8.0
"""For so long a message stays at the bottom."""
_TAIL: Final = 2_000
"""Lines of a log that are read when it is opened; what comes is added."""
_NAMED: Final = 6
_NOT_NOW: Final = 503
_SETTLE_S: Final = 0.05
"""Keys that follow one another so fast are answered together."""
_KEYS: Final = {
    "devices": "? help  q quit  Enter job  arrows device  o colour  d drain",
    "queue": "? help  q quit  Enter job  / filter  t states  s sort  c cancel  w why  l log",
    "job": "? help  q back  w why  e events  l log  c cancel  H hold  R release  y copy id",
    "log": "? help  q back  / search  n N next  f follow  G end",
}


@dataclass(frozen=True)
class TopOptions:
    """
    What was typed of ``penstock top``.

    Attributes
    ----------
    refresh_s : float
        Seconds between two refreshes.
    at : int, float, str or None
        Of which moment; None is now.
    at_words : str
        The same as it was typed.
    """

    glyphs: Glyphs
    refresh_s: float = 1.0
    user: str = ""
    pool: str = ""
    at: request_bodies.At = None
    at_words: str = ""


class PaneTabs(LineBlock):
    """The names of the panes, which can be clicked on."""

    def show_pane(self, pane: str) -> None:
        """Mark the pane that is on the screen."""
        spans: list[Span] = []
        for number, name in enumerate(PANES, 1):
            spans += [(f" {number} {name} ", "reverse bold" if name == pane else ""), (" ", "")]
        self.show_lines([spans])

    def on_click(self, event: events.Click) -> None:
        """Go to the pane that was clicked on."""
        begin = 0
        for name in PANES:
            width = len(name) + 5
            if begin <= event.x < begin + width:
                self.app.call_later(self.app.run_action, f"pane('{name}')")
            begin += width


class TopApp(App[None]):
    """
    A cluster on one terminal.

    Parameters
    ----------
    client : Client
        Connected; it is not closed.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #header { height: 2; }
    #tabs, #message { height: 1; }
    ContentSwitcher { height: 1fr; }
    #typed { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; display: none; }
    #typed:focus { border: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"pane('{name}')", name, show=False) for number, name in enumerate(PANES, 1)),
        Binding("tab", "next_pane(1)", "next pane", show=False, priority=True),
        Binding("shift+tab", "next_pane(-1)", "pane before", show=False, priority=True),
        Binding("slash", "type", "filter", show=False),
        Binding("c", "cancel", "cancel", show=False),
        Binding("H", "hold", "hold", show=False),
        Binding("R", "release", "release", show=False),
        Binding("d", "drain", "drain", show=False),
        Binding("w", "why", "why", show=False),
        Binding("e", "events", "events", show=False),
        Binding("l", "logs", "log", show=False),
        Binding("y", "copy_id", "copy id", show=False),
        Binding("r", "ask_anew", "ask anew", show=False),
        Binding("question_mark", "help", "help", show=False),
        Binding("q,escape", "leave", "back", show=False),
        Binding("ctrl+c,ctrl+q", "quit", "quit", show=False, priority=True),
    ]

    def __init__(self, client: Client, options: TopOptions) -> None:
        super().__init__(ansi_color=True)
        self.client, self.options, self.glyphs = client, options, options.glyphs
        self.status: views.StatusView | None = None
        self.who: views.UserView | None = None
        self.job_watch: JobWatch | None = None
        self.lost = ""
        """Why nobody answers; empty while somebody does."""
        self.refreshes = 0
        """How often what is seen was asked and drawn."""
        shown = QueueFilter(user=options.user, pool=options.pool)
        self.header, self.tabs, self.bottom = LineBlock(id="header"), PaneTabs(id="tabs"), LineBlock(id="message")
        self.switcher, self.typed = ContentSwitcher(initial=PANES[1]), Input(id="typed")
        self.devices = DevicePane(self.glyphs, options.pool, id="devices")
        self.queue = QueuePane(self.glyphs, shown, id="queue")
        self.job_pane, self.log_pane = JobPane(self.glyphs, id="job"), LogPane(self.glyphs, id="log")
        self.panes: dict[str, LineList] = dict(
            zip(PANES, (self.devices, self.queue, self.job_pane, self.log_pane), strict=True)
        )
        self._seen_devices: views.DevicesView | None = None
        self._job_problem = ""
        self._seen_s = 0.0
        self._log_task: asyncio.Task[None] | None = None
        self._said: Line = ()
        self._said_number = 0
        self._came_from = PANES[1]

    async def on_event(self, event: events.Event) -> None:
        """
        Do what a key is bound to before the next key is looked at.

        Textual itself has a key travel from widget to widget first, while the next ones follow it to where the focus
        was: what is typed at once after ``/`` would be taken for commands.
        """
        if isinstance(event, events.Key) and not event.is_forwarded and self.focused is not self.typed:
            self.app_focus = True  # a key tells that the terminal has the focus, as it does where Textual takes it
            bound = self.active_bindings.get(event.key)
            if bound is not None and bound.enabled and await self.run_action(bound.binding.action, bound.node):
                return
        await super().on_event(event)

    # --- what there is
    def compose(self) -> ComposeResult:
        """Compose the screen."""
        yield self.header
        yield self.tabs
        with self.switcher:
            yield from (self.devices, self.queue, self.job_pane, self.log_pane)
        yield self.typed
        yield self.bottom

    def on_mount(self) -> None:
        """Begin to ask."""
        loop = asyncio.get_running_loop()
        self._ticks = loop.time
        self._wake = asyncio.Event()
        self._jobs = JobList(self.client, self.options.at, loop.time)
        self.job_pane.show_job(None, 0.0)
        self.log_pane.begin("", None)
        self.action_pane(PANES[1])
        self.run_worker(self._refresh_for_ever(), name="refresh", exit_on_error=True)
        self.set_interval(1.0, self._show_header)

    @property
    def pane(self) -> str:
        """The name of the pane that is on the screen."""
        return self.switcher.current or PANES[1]

    @property
    def is_past(self) -> bool:
        """Whether a moment in the past is looked at."""
        return self.options.at is not None

    # --- refreshes
    async def _refresh_for_ever(self) -> None:
        while True:
            self._wake.clear()
            began_s = self._ticks()
            await self._refresh_once()
            left_s = None if self.is_past and not self.lost else self.options.refresh_s - (self._ticks() - began_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left_s if left_s is None else max(left_s, _SETTLE_S))
                await asyncio.sleep(_SETTLE_S)

    async def _refresh_once(self) -> None:
        """Ask for what is seen and draw it; where nobody answers, note it."""
        try:
            await self._ask()
        except BusError as error:
            if isinstance(error, ServiceError) and error.code != _NOT_NOW:
                self.say(str(error), is_error=True)
            else:
                self.lost = str(error) or type(error).__name__
        else:
            self.lost, self._seen_s = "", now_s()
        self.refreshes += 1
        self._show_header()

    async def _ask(self) -> None:
        if self.who is None:
            self.who = await self.client.whoami()
            self.queue.me = self.who.name or self.client.user
        if self.status is None or not self.is_past:
            self.status = await self.client.status(self.options.at)
        stack = self.screen_stack
        if stack and isinstance(stack[-1], TextOverlay):
            await stack[-1].refresh_text()
        elif self.pane == "devices":
            await self._ask_devices()
        elif self.pane == "queue":
            first, count = self.queue.wanted()
            asked = self.queue.shown, self.queue.order
            self.queue.show_window(await self._jobs.window(*asked, first, count), asked=asked)
        elif self.pane == "job":
            await self._ask_job()

    async def _ask_devices(self) -> None:
        if self._seen_devices is None or not self.is_past:
            self._seen_devices = await self.client.devices(self.options.at)
        self.devices.show_devices(self._seen_devices)

    async def _ask_job(self) -> None:
        watch = self.job_watch
        if watch is not None:
            try:
                await watch.refresh()
            except ServiceError as error:
                if error.code == _NOT_NOW:
                    raise
                self._job_problem = str(error)
            else:
                self._job_problem = ""
        if watch is self.job_watch:
            self._show_job()

    def _show_job(self) -> None:
        watch, at_s = self.job_watch, now_s()
        if watch is not None and watch.detail is not None:
            at_s = job_page.as_of_s(watch.detail, at_s, is_past=self.is_past)
        self.job_pane.show_job(watch, at_s, self._job_problem)

    @on(Answerable)
    @on(LineList.Moved)
    def ask_soon(self, message: Answerable | LineList.Moved) -> None:
        """Ask at once for what is seen now."""
        if isinstance(message, LineList.Moved) and message.source is self.queue:
            self.queue.show_head()
        if isinstance(message, Answerable) or message.source is self.queue:
            self._wake.set()

    # --- header and message
    def _show_header(self) -> None:
        self.header.show_lines(self._header())
        self.bottom.show_lines([self._bottom()])

    def _header(self) -> list[Line]:
        """Return two lines: time, jobs and as whom one came; devices and the log, or that nobody answers."""
        time = f"as of {self.options.at_words}" if self.is_past else clock(now_s())[len("2026-01-01 ") :]
        status = self.status
        if status is None:
            waits: Line = [(self.lost or f"asking {self.client.url}", "red" if self.lost else "dim")]
            return [joined([self._who(), [(time, "bold")]]), self._plain(waits)]
        jobs: list[Span] = [("jobs", "bold")]
        for state in JobState:
            if count := status.jobs.get(state, 0):
                jobs += [(f" {state} ", STATE_STYLES.get(state, "")), (f"{count:,}", "bold")]
        if len(jobs) == 1:
            jobs.append((" none", ""))
        first = joined([[(time, "bold yellow" if self.is_past else "bold")], jobs, self._who()])
        return [first, self._plain(self._lost_line()) if self.lost else self._devices_line(status)]

    def _who(self) -> Line:
        if self.who is None:
            return []
        name = self.who.name or self.client.user
        return [(self.glyphs.plain(f"{name} ({self.who.role})") if name else f"({self.who.role})", "cyan")]

    def _devices_line(self, status: views.StatusView) -> Line:
        parts: list[Line] = []
        for kind, counts in status.devices.items():
            shown: list[Span] = [(self.glyphs.plain(kind), "bold")]
            for what, style in (("busy", "green"), ("idle", ""), ("drained", "yellow"), ("lost", "red")):
                if count := counts.get(what, 0):
                    shown += [(f" {count:,} {what}", style)]
            parts.append(shown)
        backlog: Line = [(f"log {status.backlog:,} behind", "yellow")] if status.backlog else []
        return joined([*(parts or [[("no devices", "dim")]]), backlog])

    def _lost_line(self) -> Line:
        age = f"; what is seen is {span(now_s() - self._seen_s)} old" if self._seen_s else ""
        return [(f"NO ANSWER{age}", "reverse bold red"), (f"  {self.lost}", "red")]

    def _plain(self, line: Line) -> Line:
        return [(self.glyphs.plain(text), style) for text, style in line]

    def _bottom(self) -> Line:
        if self._said:
            return self._said
        keys = _KEYS[self.pane]
        return [(keys, "dim")]

    def say(self, text: str, *, is_error: bool = False) -> None:
        """Say something in the line at the bottom, for a while."""
        self._said = [(self.glyphs.plain(text), "bold red" if is_error else "bold")]
        self._said_number += 1
        number = self._said_number

        def silence() -> None:
            if self._said_number == number:
                self._said = ()
                self._show_header()

        self.set_timer(SAID_S, silence)
        self._show_header()

    @on(Said)
    def _say_of_pane(self, message: Said) -> None:
        self.say(message.text)

    # --- panes
    def action_pane(self, name: str) -> None:
        """Show a pane."""
        self.typed.display = False
        self.switcher.current = name
        self.tabs.show_pane(name)
        self._focus_now(self.panes[name])
        if name == "job":
            self._show_job()
        if name == "log":
            self._open_log()
        self._show_header()
        self._wake.set()

    def action_next_pane(self, by: int) -> None:
        """Show the pane beside."""
        if len(self.screen_stack) == 1:
            self.action_pane(PANES[(PANES.index(self.pane) + by) % len(PANES)])

    def action_ask_anew(self) -> None:
        """Ask at once for what is seen."""
        self._wake.set()

    def action_leave(self) -> None:
        """Take back the filter, or go to where one came from; in the first place, end."""
        if self.pane in {"job", "log"}:
            self.action_pane(self._came_from)
        elif self.pane == "queue" and self.queue.shown.text:
            self.queue.show_only(replace(self.queue.shown, text=""))
        elif self.pane == "queue" and self.queue.marked:
            self.queue.marked.clear()
            self.queue.show_head()
        else:
            self.exit()

    def action_help(self) -> None:
        """Show what the keys do."""
        self._overlay("penstock top", help_lines)

    def _overlay(self, title: str, ask: Callable[[int], Awaitable[Sequence[Line]]]) -> None:
        self.push_screen(TextOverlay(title, ask), lambda _: self._wake.set())
        self._wake.set()

    # --- typing
    def action_type(self) -> None:
        """Have a filter typed, or in the log what to search for."""
        if self.pane not in {"queue", "log"}:
            self.action_pane("queue")
        self.typed.value = self.queue.shown.text if self.pane == "queue" else self.log_pane.wanted
        self.typed.placeholder = "filter" if self.pane == "queue" else "search"
        self.typed.display = True
        self._focus_now(self.typed)

    @on(Input.Changed, "#typed")
    def filter_while_typed(self, event: Input.Changed) -> None:
        """Filter by what is typed so far."""
        if self.typed.display and self.pane == "queue" and event.value != self.queue.shown.text:
            self.queue.show_only(replace(self.queue.shown, text=event.value))

    @on(Input.Submitted, "#typed")
    def search_typed(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        self._close_typed()
        if self.pane == "log":
            self.log_pane.search(event.value)

    def on_key(self, event: events.Key) -> None:
        """Leave the line in which is typed; a filter is taken back."""
        if event.key == "escape" and self.typed.display:
            event.stop()
            event.prevent_default()
            if self.pane == "queue":
                self.queue.show_only(replace(self.queue.shown, text=""))
            self._close_typed()

    def _close_typed(self) -> None:
        self.typed.display = False
        self._focus_now(self.panes[self.pane])

    def _focus_now(self, widget: Widget) -> None:
        """Have a widget get the next key; ``widget.focus()`` would do so after the keys that have come already."""
        widget.screen.set_focus(widget)

    # --- a job
    @on(LineList.Chosen)
    def open_chosen(self, message: LineList.Chosen) -> None:
        """Show the job that was chosen."""
        if message.source is self.queue and self.queue.current is not None:
            self._open(self.queue.current.id, "job")
        elif message.source is self.devices:
            if self.devices.job_id:
                self._open(self.devices.job_id, "job")
            else:
                self.say("this device is idle")

    def _open(self, job_id: str, pane: str) -> None:
        if self.pane not in {"job", "log"}:
            self._came_from = self.pane
        if self.job_watch is None or self.job_watch.job_id != job_id:
            self.job_watch = JobWatch(self.client, self.options.at, self._ticks, job_id)
            self._job_problem = ""
            self._close_log()
            self.job_pane.first = 0
        self.action_pane(pane)

    def _job_here(self) -> str:
        """Return the job under the cursor, on the device or open; empty with a message where there is none."""
        if self.pane == "queue":
            found = self.queue.current.id if self.queue.current is not None else ""
        elif self.pane == "devices":
            found = self.devices.job_id
        else:
            found = self.job_watch.job_id if self.job_watch is not None else ""
        if not found:
            self.say("there is no job here")
        return found

    def action_logs(self) -> None:
        """Show a job's log."""
        if job_id := self._job_here():
            self._open(job_id, "log")

    def action_why(self) -> None:
        """Say why a job is where it is."""
        if job_id := self._job_here():

            async def ask(width: int) -> Sequence[Line]:
                why = await self.client.why(job_id, self.options.at)
                return job_page.why_page(why, width, now_s(), self.glyphs)

            self._overlay(f"why {self.glyphs.plain(job_id)}", ask)

    def action_events(self) -> None:
        """Show the facts about a job."""
        if job_id := self._job_here():

            async def ask(width: int) -> Sequence[Line]:
                found = await self.client.events(job_id, at=self.options.at)
                return job_page.event_page(found.events, width, self.glyphs)

            self._overlay(f"events of {self.glyphs.plain(job_id)}", ask)

    def action_copy_id(self) -> None:
        """Copy a job's id, by way of the terminal."""
        if job_id := self._job_here():
            self.copy_to_clipboard(job_id)
            self.say(f"copied {job_id}")

    # --- the log
    def _open_log(self) -> None:
        if self.job_watch is None:
            self.log_pane.begin("", None)
        elif self._log_task is None:
            self._log_task = asyncio.create_task(self._read_log(self.job_watch.job_id))

    def _close_log(self) -> None:
        if self._log_task is not None:
            self._log_task.cancel()
            self._log_task = None
        self.log_pane.begin("", None)

    async def _read_log(self, job_id: str) -> None:
        """Read a job's output as long as it is looked at; where nobody answers, go on when somebody does."""
        self.log_pane.begin(job_id, OutputLines(ranks=False))
        self.log_pane.say("reading")
        reader, output = OutputReader(self.client.bus, job_id), None
        while True:
            try:
                detail = await self.client.job(job_id)
                if output is None:
                    output = OutputLines(ranks=detail.spec.gpus > 1)
                    self.log_pane.begin(job_id, output)
                    for piece in await reader.last(_TAIL):
                        output.add_piece(piece)
                self.log_pane.say(f"{detail.job.state}, {'its output now' if self.is_past else 'live'}")
                async with aclosing(self.client.follow_output(detail, reader)) as pieces:
                    async for piece in pieces:
                        output.add_piece(piece)
                        if not self._log_is_drawn_soon:
                            self._log_is_drawn_soon = True
                            self.set_timer(_SETTLE_S, self._draw_log)
                self.log_pane.say("ended")
                return
            except ServiceError as error:
                self.log_pane.say(str(error))
                return
            except BusError as error:
                self.log_pane.say(f"no answer ({error}); trying again")
                await asyncio.sleep(self.options.refresh_s)

    _log_is_drawn_soon = False

    def _draw_log(self) -> None:
        self._log_is_drawn_soon = False
        self.log_pane.draw()

    # --- commands
    def _acted_on(self) -> list[str]:
        """Return the marked jobs, or the one that is here."""
        if self.pane == "queue" and self.queue.marked:
            return sorted(self.queue.marked)
        found = self._job_here()
        return [found] if found else []

    def _may_act(self) -> bool:
        if self.is_past:
            self.say(f"this is the past ({self.options.at_words}): nothing can be changed there", is_error=True)
        return not self.is_past

    def action_cancel(self) -> None:
        """Cancel jobs, after a question."""
        if not self._may_act() or not (job_ids := self._acted_on()):
            return
        named = ", ".join(job_ids[:_NAMED]) + (f" and {len(job_ids) - _NAMED} more" if len(job_ids) > _NAMED else "")
        question = [f"Cancel {render.count(len(job_ids), 'job')}?" if len(job_ids) > 1 else "Cancel this job?", named]
        job = self.queue.current if self.pane == "queue" else None
        if job is not None and job_ids == [job.id]:
            question = [question[0], job_page.name_of(job, self.glyphs), f"of {job.user}: {job_page.summary_of(job)}"]
        self._after(question, lambda: self._act_on_jobs("cancel", job_ids))

    def action_hold(self) -> None:
        """Keep jobs from being started."""
        if self._may_act() and (job_ids := self._acted_on()):
            self.run_worker(self._act_on_jobs("hold", job_ids))

    def action_release(self) -> None:
        """Let held jobs be started again."""
        if self._may_act() and (job_ids := self._acted_on()):
            self.run_worker(self._act_on_jobs("release", job_ids))

    def action_drain(self) -> None:
        """Give a node no new jobs, or a drained one jobs again, after a question."""
        if self.pane != "devices":
            return self.say("nodes are drained in the devices (1)")
        node = self.devices.node
        if node is None or not self._may_act():
            return None
        name = self.glyphs.plain(node.id)
        if node.state in {"draining", "drained"}:
            return self._after([f"Give {name} jobs again?"], lambda: self._act_on_node(node.id, self.client.resume))
        busy = len({job_id for device in node.devices for job_id in device.job_ids})
        question = [f"Drain {name}?", f"It gets no new jobs; {render.count(busy, 'job')} on it may end there."]
        return self._after(question, lambda: self._act_on_node(node.id, self.client.drain))

    def _after(self, question: Sequence[str], act: Callable[[], Awaitable[None]]) -> None:
        """Ask a question, and act if the answer is yes."""

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                self.run_worker(act())
            else:
                self.say("nothing was changed")

        self.push_screen(QuestionDialog([self.glyphs.plain(line) for line in question], self.glyphs), answered)

    async def _act_on_jobs(self, verb: request_bodies.Verb, job_ids: Sequence[str]) -> None:
        """Give a command about jobs in one request, and say what became of them."""
        try:
            found = await self.client.act_on_all(verb, job_ids)
        except BusError as error:
            self.say(str(error), is_error=True)
            return
        refused = [answer for answer in found.answers if answer.code]
        self.queue.marked.difference_update(answer.id for answer in found.answers if not answer.code)
        if len(found.answers) == 1:
            self.say(found.answers[0].error or found.answers[0].message, is_error=bool(refused))
        else:
            more = f"; {len(refused):,} were refused: {refused[0].error}" if refused else ""
            self.say(
                f"{verb}: {found.changed:,} of {render.count(len(job_ids), 'job')} changed{more}", is_error=bool(more)
            )
        self._wake.set()

    async def _act_on_node(self, node_id: str, command: Callable[[str], Awaitable[views.ActAnswer]]) -> None:
        """Give a command about a node, and say what became of it."""
        try:
            self.say((await command(node_id)).message)
        except BusError as error:
            self.say(str(error), is_error=True)
        self._wake.set()

    async def on_unmount(self) -> None:
        """Stop reading."""
        if self._log_task is not None:
            self._log_task.cancel()
            await asyncio.gather(self._log_task, return_exceptions=True)
