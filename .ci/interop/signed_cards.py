"""Cards that a node signs, verified by the official Python SDK with the key that the node publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import PyJWK

from checks import Checks


def make_key(file: Path) -> None:
    key = generate_private_key(SECP256R1())
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


async def verified(checks: Checks, node: str, path: str) -> None:
    async with httpx.AsyncClient(timeout=30) as http:
        keys = {key["kid"]: key for key in (await http.get(f"{node}/.well-known/jwks.json")).json()["keys"]}
        card = await A2ACardResolver(http, node).get_agent_card(relative_card_path=path)
    verify = create_signature_verifier(lambda kid, _: PyJWK(keys[kid]), ["ES256", "EdDSA"])
    verify(card)
    checks.that(f"{path}: the signature is verified", True)
    card.description += " And more."
    try:
        verify(card)
        checks.that(f"{path}: a changed card is refused", False)
    except InvalidSignaturesError:
        checks.that(f"{path}: a changed card is refused", True)


def run(nodes: list[str]) -> Checks:
    checks = Checks("signed-cards")
    for path in (".well-known/agent-card.json", "agents/librarian/.well-known/agent-card.json"):
        asyncio.run(verified(checks, nodes[0], path))
    return checks
