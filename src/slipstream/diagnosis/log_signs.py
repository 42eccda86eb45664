"""Signs of an engine at work. A log with neither such a line nor a known failure is not reported as healthy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.diagnosis.log_unknown import LONGEST
from slipstream.findings import rule
from slipstream.parsing.log_scan import Hit, Located, in_user_text, without_colours

NO_SIGN = rule(
    "log-no-sign",
    "unknown",
    "The log shows neither a known failure nor the engine at work",
    "Nothing in the log is a known failure, and no line shows the engine loading, ready or answering. The engine may "
    "hang, this may be a part of its log, or the log of a program that the doctor does not know. {warned}",
    "Give the whole log, to its last line, and name the engine with --engine. {verbose}Check models, machine and "
    "configuration: slipstream doctor --target MODEL --draft MODEL --config FILE.",
)
NOT_READY = rule(
    "log-not-ready",
    "note",
    "The log does not show that the engine worked",
    "No known failure is in the log. It shows the engine starting, but no line says that it was ready or that it "
    "answered: this may be a part of a log, or the engine hangs after the last line.",
    "Give the whole log, to its last line. If nothing follows for minutes, the engine hangs there.",
)
ALL_REFUSED = rule(
    "log-requests-refused",
    "blocks",
    "The engine runs, and refuses every request",
    "All {count} requests at the end of the log were answered {status}. The last one: {meaning}.",
    "The answer says why, and the log does not: send one request with curl -i, and read its body. {fix}",
)
_ANSWER = re.compile(
    r"\"POST \S+ HTTP/[\d.]+\" (?P<uvicorn>\d{3})\b|\| (?P<gin>\d{3}) \|.*\bPOST\b|"
    r"request: POST \S+ \S+ (?P<llama>\d{3})$"
)
_REFUSALS = {
    "400": (
        "something in the request is wrong for this engine",
        "Common: a prompt longer than the context, a parameter that the engine does not know, no chat template.",
    ),
    "401": ("an API key is missing or wrong", "Send it as Authorization: Bearer KEY."),
    "403": ("the request is not allowed", "Send the API key, and look at the engine's list of allowed hosts."),
    "404": (
        "there is no such model or no such path",
        "The model's name has to be one that GET /v1/models lists, and the path begins with /v1.",
    ),
    "405": ("the path takes no POST", "The path is /v1/chat/completions or /v1/completions."),
    "413": ("the request is too large", "Shorten the prompt."),
    "422": ("a field of the request is missing, or of another type", "The body names the field."),
    "429": ("too many requests wait already", "Send fewer at the same time, or raise the engine's limit."),
}
_EDGE = 256_000  # characters at the beginning and at the end of a log that are looked at
_WORK = re.compile(
    # speeds, times and counts of something done
    r"(?i)\d ?(?:tok(?:en)?s?/s|t/s|tokens? per second|ms/t)|tok(?:en)?s?/s\)?[ \"'=:]+[\d.]|"
    r"\b(?:tokens generated|generated tokens|new tokens|generat(?:ed|ing) \(?\d+|accept(?:ance|ed)?\b.{0,40}\d)|"
    r"\b(?:finished|completed) in .{0,24}\d|"
    r"\b(?:duration|latency|total time|elapsed|average|avg|mean|median)\b.{0,24}\d|\b(?:tokens|drafted|rounds)[=:] ?\d|"
    r"\"(?:predicted_per_second|draft_n)\":|"
    # a comparison of speeds
    r"\bspeed-?up\b|_t/s\b|\b\d+\.\d+x\b|"
    # answers
    r"\" 20\d\b|\b200 ok\b|\| 20\d \||\bPOST \S+ \S+ 200\b|\"status\": ?200|returning 200|finished streaming|"
    r"first token generated|\b(?:prefill|decode) batch\b|processing prompt|processing task|prompt processing|"
    r"^(?:output|answer|assistant|response): |^>>> |for open-end generation|finish_reason|_total(?:\{|\s)|"
    r"\bINFO: {4,5}\S|"  # a program with a web server notes what it does, prompts too
    # ready
    r"startup complete|ready to roll|\b(?:listening|running|serving|starting \S+ server) on\b|server started|"
    r"please connect to|available routes|\broute: /|is ready\b|text model ok: true|\b100 ?%|^\s*success\s*$|"
    r"(?:model|kit|draft) .{0,40}loaded\b|loaded (?:model|success\w*)|success\w* load"
)
# A step of a start, and a line of a program that says what it does.
_START = re.compile(
    r"(?i)\btook\b.{0,24}\d|\d ?(?:it/s|s/it)\b|load(?:ed|ing)? .{0,80}\b(?:done|complete\w*)\b|"
    r"loaded (?:runners|\w+ backend)|"
    r"offload(?:ed|ing) \d+|kv (?:self |cache |buffer )*size|kv cache is allocated|memory pool end|load weight end|"
    r"cuda graph end|graph captur|capturing (?:batches|cuda graphs?)|(?:cuda|gpu) blocks:|model weights take|"
    r"^(?:print_info|llm_load_\w+|load_tensors|llama_model_load\w*): |identified as \w+ model|resolved architecture|"
    r"load_model: initializing|total blobs:|-> \S*handler|level=info|\bINFO\b|^[\d.]+ I "
)
_WORDS = re.compile(r"[^\W\d_]{2}")
_WARNING = re.compile(r"\b(?:WARN|WARNING|\w*Warning)\b|level=warn|^[\d.]+ W ", re.IGNORECASE)


def shows_work(text: str) -> bool:
    """Whether a line shows the engine ready, or answering."""
    return _has_line(text, _WORK)


def _has_line(text: str, pattern: re.Pattern[str]) -> bool:
    edges = [text] if len(text) <= 2 * _EDGE else [text[:_EDGE], text[-_EDGE:]]
    return any(pattern.search(without_colours(line[:LONGEST])) for edge in edges for line in edge.splitlines())


def refused_requests(text: str, begin: int) -> list[Located]:
    """Where a run that begins there has answers, and all of them are refusals: the last is quoted."""
    answers = [found for at, line in _lines(text) if at >= begin and (found := _answer(at, line))]
    if not answers or not all(status in _REFUSALS for _, status in answers):
        return []
    hit, status = answers[-1]
    meaning, fix = _REFUSALS[status]
    kinds = " or ".join(sorted({status for _, status in answers}))
    return [Located(hit, ALL_REFUSED.finding(count=len(answers), status=kinds, meaning=meaning, fix=fix))]


def _answer(at: int, line: str) -> tuple[Hit, str] | None:
    """A line with the status of an answer to a request."""
    found = _ANSWER.search(line)
    return (Hit(at, line, {}), str(found[found.lastgroup or 0])) if found else None


def without_failure(text: str, verbose: str) -> list[Located]:
    """What to say of a log without a known failure and without a line of an engine that is ready."""
    if shows_work(text):
        return []
    lines = list(_lines(text)) or [(0, "")]
    if _has_line(text, _START):
        return [Located(Hit(*lines[-1], {}), NOT_READY.finding())]
    return [_no_sign(lines, verbose)]


def _no_sign(lines: list[tuple[int, str]], verbose: str) -> Located:
    """Quotes the last warning of the log, or else its last line. `verbose`: as of `unknown`."""
    warnings = [place for place in lines if _WARNING.search(place[1])]
    at, line = (warnings or lines)[-1]
    warned = "A warning that no rule knows is quoted." if warnings else "The last line with words is quoted."
    more = f"Start it again with {verbose}. " if verbose else ""
    return Located(Hit(at, line, {}), NO_SIGN.finding(warned=warned, verbose=more))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines at the end with words that are no text of a user, each with its place."""
    at = max(0, len(text) - _EDGE)
    for line in text[at:].splitlines(keepends=True):
        clean = without_colours(line[:LONGEST]).strip()
        if _WORDS.search(clean) and not in_user_text(text, at + len(line) - 1):
            yield at, clean
        at += len(line)
