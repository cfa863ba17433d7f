"""Documents to extract from, made by templates and a seed, each with a schema of 8 fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

FIRST = ("Maria", "Jonas", "Aiko", "Samuel", "Leila", "Tomás", "Ingrid", "Wei", "Olu", "Priya")
LAST = ("Lindqvist", "Okafor", "Tanaka", "Berger", "Haddad", "Moreno", "Kowalski", "Chen", "Rao")
CITIES = ("Lisbon", "Hamburg", "Kyoto", "Austin", "Nairobi", "Gothenburg", "Montréal", "Pune")
FIRMS = ("Northwind Traders", "Halden Optics", "Bluefin Logistics", "Quarry & Sons", "Aster Labs")
TEXT: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 80}
DAY: dict[str, Any] = {"type": "string", "format": "date"}
WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
MONEY: dict[str, Any] = {"type": "string", "pattern": "^[0-9]{1,6}\\.[0-9]{2}$"}
FLAG: dict[str, Any] = {"type": "boolean"}


@dataclass(frozen=True)
class Document:
    """A prompt, and the schema of the answer."""

    name: str
    prompt: str
    schema: dict[str, Any]


class _Values:
    """Random values, each of which is written into the text as it is to be found."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def person(self) -> str:
        return f"{self.draw.choice(FIRST)} {self.draw.choice(LAST)}"

    def day(self) -> str:
        return f"2026-{self.draw.randint(1, 12):02}-{self.draw.randint(1, 28):02}"

    def money(self) -> str:
        return f"{self.draw.randint(40, 9000)}.{self.draw.randint(0, 99):02}"

    def code(self, letters: str) -> str:
        return f"{letters}-{self.draw.randint(1000, 9999)}-{self.draw.randint(10, 99)}"

    def of(self, *items: str) -> str:
        return self.draw.choice(items)

    def whole(self, least: int, most: int) -> int:
        return self.draw.randint(least, most)


def _one_of(*items: str) -> dict[str, Any]:
    return {"enum": list(items)}


def _list(most: int) -> dict[str, Any]:
    return {"type": "array", "items": TEXT, "minItems": 1, "maxItems": most}


def _invoice(v: _Values) -> tuple[str, dict[str, Any]]:
    firm, number, day, due = v.of(*FIRMS), v.code("INV"), v.day(), v.day()
    text = (
        f"{firm}\nInvoice {number}\nDate: {day}   Due: {due}\nBill to: {v.person()}, "
        f"{v.of(*CITIES)}"
        f"\n\n{v.whole(2, 9)} x replacement lens, {v.whole(1, 5)} x service visit\n"
        f"Total: EUR {v.money()} (VAT included)\nPlease pay by bank transfer."
    )
    fields = {
        "invoice_number": TEXT,
        "seller": TEXT,
        "customer": TEXT,
        "date": DAY,
        "due_date": DAY,
        "currency": _one_of("EUR", "USD", "GBP"),
        "total": MONEY,
        "city": TEXT,
    }
    return text, fields


def _mail(v: _Values) -> tuple[str, dict[str, Any]]:
    sender, day = v.person(), v.day()
    text = (
        f"From: {sender} <office@halden.example>\nTo: {v.person()}\nSubject: Visit on {day}\n\n"
        f"Dear all,\nour inspection at the {v.of(*CITIES)} site is on {day} at "
        f"{v.whole(8, 17)}:30. We will be {v.whole(2, 6)} people. Please bring the badge forms and "
        f"the key to hall {v.whole(1, 9)}. This is {v.of('urgent', 'not urgent')}.\nRegards\n"
        f"{sender}"
    )
    fields = {
        "sender": TEXT,
        "recipient": TEXT,
        "subject": TEXT,
        "date": DAY,
        "location": TEXT,
        "people": WHOLE,
        "items_to_bring": _list(3),
        "urgent": FLAG,
    }
    return text, fields


def _job(v: _Values) -> tuple[str, dict[str, Any]]:
    low = v.whole(45, 70)
    text = (
        f"{v.of(*FIRMS)} is hiring a {v.of('data engineer', 'welder', 'night nurse', 'buyer')} in "
        f"{v.of(*CITIES)}.\nYou bring {v.whole(2, 8)} years of experience, a calm voice and a "
        f"driving licence. Salary {low}000 to {low + 12}000 a year, {v.of('remote', 'on site')}.\n"
        f"Apply until {v.day()} to {v.person()}."
    )
    fields = {
        "employer": TEXT,
        "title": TEXT,
        "city": TEXT,
        "years_of_experience": WHOLE,
        "salary_from": WHOLE,
        "remote": FLAG,
        "apply_until": DAY,
        "contact": TEXT,
    }
    return text, fields


def _ticket(v: _Values) -> tuple[str, dict[str, Any]]:
    text = (
        f"Ticket {v.code('SUP')} opened {v.day()} by {v.person()}\nProduct: Aster Sync "
        f"{v.whole(2, 6)}.{v.whole(0, 9)} on {v.of('Linux', 'Windows', 'macOS')}\nPriority: "
        f"{v.of('low', 'medium', 'high')}\nSince the update the client stops after "
        f"{v.whole(3, 40)} files and shows 'quota exceeded', although the disk is nearly "
        "empty. A restart helps."
    )
    fields = {
        "ticket": TEXT,
        "opened": DAY,
        "reporter": TEXT,
        "product": TEXT,
        "summary": TEXT,
        "system": _one_of("Linux", "Windows", "macOS"),
        "error_message": TEXT,
        "priority": _one_of("low", "medium", "high"),
    }
    return text, fields


def _flight(v: _Values) -> tuple[str, dict[str, Any]]:
    start, end = v.draw.sample(CITIES, 2)
    text = (
        f"Booking {v.code('BK')}\nPassenger: {v.person()}\n{start} to {end}, flight "
        f"NW{v.whole(100, 999)}, {v.day()}, departs {v.whole(6, 22)}:15, seat {v.whole(1, 32)}C\n"
        f"Checked bags: {v.whole(0, 3)}. Fare: USD {v.money()}, not refundable."
    )
    fields = {
        "booking": TEXT,
        "passenger": TEXT,
        "from_city": TEXT,
        "to_city": TEXT,
        "flight": TEXT,
        "date": DAY,
        "checked_bags": WHOLE,
        "refundable": FLAG,
    }
    return text, fields


def _flat(v: _Values) -> tuple[str, dict[str, Any]]:
    text = (
        f"{v.whole(2, 5)} room flat in {v.of(*CITIES)}, {v.whole(40, 140)} square metres, floor "
        f"{v.whole(0, 7)}, {v.of('with', 'without')} lift. Rent {v.whole(700, 2600)} a month, "
        f"deposit {v.whole(1500, 7000)}. Free from {v.day()}. Balcony, oak floor, new kitchen. "
        f"Viewings with {v.person()}."
    )
    fields = {
        "city": TEXT,
        "rooms": WHOLE,
        "square_metres": WHOLE,
        "lift": FLAG,
        "rent": WHOLE,
        "free_from": DAY,
        "features": _list(4),
        "contact": TEXT,
    }
    return text, fields


def _incident(v: _Values) -> tuple[str, dict[str, Any]]:
    text = (
        f"Incident {v.code('OPS')} on {v.day()}: the {v.of('billing', 'search', 'login')} service "
        f"in {v.of(*CITIES)} was down for {v.whole(4, 180)} minutes. Cause: an expired "
        f"certificate. {v.whole(20, 9000)} customers were affected. "
        f"{v.person()} rotated the certificate and added an alarm. "
        f"Severity {v.of('SEV1', 'SEV2', 'SEV3')}."
    )
    fields = {
        "incident": TEXT,
        "date": DAY,
        "service": _one_of("billing", "search", "login"),
        "minutes_down": WHOLE,
        "cause": TEXT,
        "customers_affected": WHOLE,
        "fixed_by": TEXT,
        "severity": _one_of("SEV1", "SEV2", "SEV3"),
    }
    return text, fields


def _order(v: _Values) -> tuple[str, dict[str, Any]]:
    text = (
        f"Purchase order {v.code('PO')} from {v.of(*FIRMS)}\nArticle: ball bearing 6204, "
        f"{v.whole(10, 900)} pieces at {v.money()} each\nDeliver to: {v.of(*CITIES)}, gate "
        f"{v.whole(1, 12)}, not before {v.day()}\nOrdered by {v.person()}. Incoterm: "
        f"{v.of('EXW', 'FCA', 'DAP')}."
    )
    fields = {
        "order": TEXT,
        "buyer": TEXT,
        "article": TEXT,
        "pieces": WHOLE,
        "unit_price": MONEY,
        "city": TEXT,
        "not_before": DAY,
        "incoterm": _one_of("EXW", "FCA", "DAP"),
    }
    return text, fields


KINDS: tuple[Callable[[_Values], tuple[str, dict[str, Any]]], ...] = (
    *(_invoice, _mail, _job, _ticket, _flight, _flat, _incident, _order),
)


def documents(count: int, seed: int = 0) -> list[Document]:
    """One of each kind, then the next of each."""
    made = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        text, fields = kind(_Values(1000 * seed + number))
        asked = (
            f"Extract these fields from the document as JSON: {', '.join(fields)}.\n\n{text}\n\n"
            "Answer with the JSON object only."
        )
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        schema |= {"additionalProperties": False}
        name = f"{kind.__name__.removeprefix('_')} {number // len(KINDS) + 1}"
        made.append(Document(name, asked, schema))
    return made
