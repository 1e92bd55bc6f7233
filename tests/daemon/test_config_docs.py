"""The guide to the configuration: its reference is complete, and its examples can be used.

After a change of the keys, write the reference anew and look at the diff:

    ROAMCAST_REGENERATE=1 python -m pytest tests/daemon/test_config_docs.py
"""

import json
import os
import re
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.net.certificates import Authority

from roamcast.config.schema import keys_of
from roamcast.config.sections import Config
from roamcast.config.writing import reference_table
from roamcast.daemon.config import load
from roamcast.net.users import changing_users, hash_password

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "broker-configuration.md"
MARK = "<!-- From here on written by "

EXAMPLES = [
    example
    for guide in (GUIDE, GUIDE.with_name("mobile-brokers.md"))
    for example in re.findall(r"```toml\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
]


def test_the_reference_is_what_the_code_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    head, mark, rest = text.partition(MARK)
    assert mark, "the mark is gone"
    wanted = f"{head}{mark}{rest.partition('-->')[0]}-->\n\n{reference_table(Config)}"
    if os.environ.get("ROAMCAST_REGENERATE") == "1":
        GUIDE.write_text(wanted, encoding="utf-8")
    assert GUIDE.read_text(encoding="utf-8") == wanted


def test_the_reference_has_every_key_with_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", reference_table(Config), re.MULTILINE)
    assert [name for name, *_ in rows] == [key.path[-1] for key in keys_of(Config)]
    assert all(all(cells) for cells in rows)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_guide_can_be_used(tmp_path: Path, example: str) -> None:
    authority = Authority(tmp_path, "ca")
    authority.sign("site")
    with changing_users(str(tmp_path / "site-users")) as users:
        users["alice"] = hash_password(b"a long pass phrase")
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    keys = {"keys": [json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key))]}
    (tmp_path / "issuer-keys.json").write_text(json.dumps(keys))
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length")
    secret.chmod(0o600)
    path = tmp_path / "site.toml"
    path.write_text(example)
    assert load(path, {}, {}) != Config(data=str(tmp_path / "roamcast-data"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
