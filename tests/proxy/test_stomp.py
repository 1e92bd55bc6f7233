"""STOMP frames: written and read again, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.proxy.stomp import HEADERS_BYTES_MAX, Frame, StompError, StompReader, write_frame

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
frames = st.builds(
    Frame,
    st.sampled_from(["MESSAGE", "RECEIPT", "ERROR"]),
    st.dictionaries(texts.filter(lambda name: name not in ("", "content-length")), texts, max_size=5),
    st.binary(max_size=200),
)


@given(st.lists(frames, max_size=5), st.integers(1, 50))
def test_frames_come_out_as_they_went_in(sent: list[Frame], size: int) -> None:
    data = b"".join(write_frame(*frame) + b"\n" for frame in sent)
    reader = StompReader()
    found = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
    assert found == sent


@pytest.mark.parametrize(
    "data",
    [
        b"MESSAGE\ncontent-length:-1\n\nx\0",
        b"MESSAGE\ncontent-length:99999999999\n\nx\0",
        b"MESSAGE\ncontent-length:1\n\nxx\0",
        b"x" * (HEADERS_BYTES_MAX + 1),
    ],
)
def test_what_is_no_stomp_is_refused(data: bytes) -> None:
    with pytest.raises(StompError):
        StompReader().feed(data)


def test_a_frame_without_a_length_ends_at_its_zero() -> None:
    assert StompReader().feed(b"ERROR\nmessage:no\n\nwhy\0\n\n") == [
        Frame("ERROR", {"message": "no"}, b"why")
    ]
