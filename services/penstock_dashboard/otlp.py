"""Jobs' spans as those of OpenTelemetry's SDK, sent by OTLP over HTTP; needs the extra ``otel``."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from penstock_dashboard.job_spans import JobSpan


class OtlpExporter:
    """
    Sends spans to a collector.

    Parameters
    ----------
    endpoint : str
        Of the collector, such as ``http://127.0.0.1:4318``; ``/v1/traces`` is added where it names no path. Headers,
        certificates and time-outs are as OpenTelemetry's own ``OTEL_EXPORTER_OTLP_…`` variables say.
    version : str
        Penstock's.
    """

    def __init__(self, endpoint: str, version: str) -> None:
        address = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
        self._exporter = OTLPSpanExporter(endpoint=address)
        self._resource = Resource.create({"service.name": "penstock", "service.version": version})
        self._scope = InstrumentationScope("penstock", version)

    def export(self, spans: Sequence[JobSpan]) -> bool:
        """Send spans; return whether the collector has taken them."""
        try:
            return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS
        except OSError:  # of earlier releases, where the collector is away
            return False

    def _readable(self, span: JobSpan) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
            kind=SpanKind.INTERNAL,
            attributes=span.attributes,
            events=[Event(one.name, one.attributes, _ns(one.at_s)) for one in span.events],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_ns(span.begun_s),
            end_time=_ns(span.ended_s),
        )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)
