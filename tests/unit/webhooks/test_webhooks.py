"""Signatures, addresses and delays of webhooks."""

from datetime import UTC, datetime

import pytest

from app.wings.webhooks.service import DELAYS, check_secret, is_public, next_delay, secret_of, signature


def test_the_signature_of_the_specifications_example() -> None:
    """The example of Standard Webhooks (its reference library's test vector)."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signature(
        secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime(2021, 2, 25, 15, 2, 10, tzinfo=UTC), '{"test": 2432232314}'
    )
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_made_here_is_one_that_is_taken() -> None:
    check_secret(secret_of(bytes(32)))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("2002:a83f:8110::", False),
        ("192.0.0.192", False),
        ("192.0.0.9", False),
        ("192.88.99.1", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("64:ff9b::a83f:8110", False),
        ("fec0::1", False),
        ("64:ff9b:1::1", False),
        ("64:ff9b:1:ffff::5db8:d822", False),
        ("::8.8.8.8", False),
        ("::ffff:0:8.8.8.8", False),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_public_and_private_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("attempts", "status", "retry_after", "delay"),
    [
        (1, 500, None, DELAYS[0]),
        (1, None, None, DELAYS[0]),
        (2, 404, None, DELAYS[1]),
        (1, 429, 2.0, DELAYS[0]),
        (1, 429, 60.0, 60.0),
        (1, 503, 1e9, DELAYS[-1]),
        (1, 410, 60.0, None),
        (len(DELAYS), 500, None, DELAYS[-1]),
        (len(DELAYS) + 1, 500, None, None),
    ],
)
def test_delays_of_retries(attempts: int, status: int | None, retry_after: float | None, delay: float | None) -> None:
    assert next_delay(attempts, status, retry_after) == delay
