"""All parameters of the radio model, with their sources.

Sources: the CC2420's datasheet; IEEE 802.15.4-2006 (2.4 GHz, O-QPSK with direct-sequence spreading); the
defaults of Castalia 3, the simulator that Amozarrain 2021 used (section 4.5) without changing its channel and
radio settings; the thesis itself; or our choice, with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from roamcast.errors import InputError

SYMBOL_S = 16e-6
"""IEEE 802.15.4, 6.5.3: 62.5 thousand symbols of 4 bits in a second."""


@dataclass(frozen=True)
class RadioParameters:
    """Lengths are in metres, powers in dBm, sizes in bytes, times in seconds."""

    # --- the channel ---
    path_loss_at_1m_db: float = 55.0
    """Castalia: PLd0, at a reference distance of 1 m."""
    path_loss_exponent: float = 2.4
    """Castalia: pathLossExponent."""
    shadowing_db: float = 4.0
    """Castalia: sigma, the standard deviation between places at the same distance."""
    asymmetry_db: float = 1.0
    """Castalia: bidirectionalSigma, the standard deviation of one direction given the other."""
    shadowing_cell_m: float = 5.0
    """Castalia: xCellSize. The shadowing of a link depends on the cells of its ends, so it changes
    by moving.
    """
    move_every_s: float = 0.1
    """Castalia: its mobility modules have an updateInterval of this order; at 10 m/s it is a step of 1 m."""

    # --- the CC2420 ---
    power_dbm: float = 0.0
    """Thesis, 4.5.2: the chip's maximum."""
    sensitivity_dbm: float = -95.0
    """Datasheet, typical; Castalia has the same value. Weaker frames are not recognised."""
    noise_floor_dbm: float = -100.0
    """Castalia: CC2420, mode normal. Thermal noise in 2 MHz is -111 dBm; the rest is the receiver's."""
    co_channel_rejection_db: float = 3.0
    """Datasheet: how far a frame must be above that of another CC2420 for a loss of one packet in a hundred.
    The error formula treats interference as white noise, of which the receiver tolerates more: see
    `reception.interference_weight`.
    """
    bit_rate: float = 250_000.0
    """Datasheet and standard, in bits per second."""
    clear_channel_dbm: float = -95.0
    """Castalia: CCAthreshold. The datasheet's default, -77, would leave most of a C32 network hidden."""

    # --- frames ---
    preamble_bytes: int = 6
    """Standard, 6.3: preamble 4, start 1, length 1."""
    header_bytes: int = 11
    """Standard, 7.2: control 2, sequence 1, network 2, two short addresses 4, checksum 2."""
    frame_bytes_max: int = 127
    """Standard: aMaxPHYPacketSize, header included. Longer messages take several frames."""
    acknowledgement_bytes: int = 5
    """Standard, 7.2.2.3."""

    # --- medium access: unslotted CSMA-CA ---
    backoff_unit_s: float = 20 * SYMBOL_S
    """Standard: aUnitBackoffPeriod."""
    backoff_exponent_min: int = 3
    """Standard: macMinBE."""
    backoff_exponent_max: int = 5
    """Largest back-off exponent (macMaxBE in the standard)."""
    backoffs_max: int = 4
    """Standard: macMaxCSMABackoffs. If the channel is busy once more, the attempt has failed."""
    backoff_step_s: float = 0.0
    """0: use the exponents of the standard. Otherwise: longest wait before listening; twice as long after the
    first busy channel, three times after the second, and so on.
    """
    acknowledged: bool = True
    """True if unicast frames are acknowledged. Castalia's CSMA acknowledges and repeats nothing, see
    `CASTALIA_CSMA`.
    """
    retries_max: int = 3
    """Standard: macMaxFrameRetries, for unicast frames; broadcast frames are sent once."""
    sensing_s: float = 8 * SYMBOL_S
    """Standard, 6.9.9: duration of listening to the channel, 8 symbols."""
    turnaround_s: float = 12 * SYMBOL_S
    """Standard: aTurnaroundTime, between receiving and sending."""
    acknowledgement_wait_s: float = 54 * SYMBOL_S
    """Standard: macAckWaitDuration."""
    queue_messages: int = 32
    """Castalia: macBufferSize of its CSMA. Messages that find the queue full are not sent."""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if getattr(self, name) <= 0:
                raise InputError(f"radio parameter {name}: {getattr(self, name)!r}; it must be above 0")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise InputError(f"radio parameter {name}: {getattr(self, name)!r}; it must not be below 0")
        if self.frame_bytes_max <= self.header_bytes:
            raise InputError(f"radio parameter frame_bytes_max: above header_bytes, {self.header_bytes}")

    @property
    def payload_bytes_max(self) -> int:
        return self.frame_bytes_max - self.header_bytes

    def air_s(self, frame_bytes: int) -> float:
        """Return the airtime of a frame of that size, including its preamble."""
        return 8 * (self.preamble_bytes + frame_bytes) / self.bit_rate


POSITIVE = (
    "path_loss_exponent", "shadowing_cell_m", "move_every_s", "bit_rate", "frame_bytes_max",
    "backoff_unit_s", "queue_messages",
)  # fmt: skip
NOT_NEGATIVE = tuple(
    field.name
    for field in fields(RadioParameters)
    if field.name not in POSITIVE and not field.name.endswith("dbm")
)

CASTALIA_CSMA = RadioParameters(acknowledged=False, backoff_step_s=0.016, backoffs_max=1_000_000)
"""Parameters with Castalia's CSMA, which the thesis used (4.5.2): TunableMAC, with numTx 1, backoffType 2 and
backoffBaseValue 16 ms. It never gives up listening, and nothing is acknowledged. In Castalia it does not
wait before it first listens (randomTxOffset 0); here it does, or all stations that answer the same
broadcast would always collide. MFT-PubSub stores what has not arrived, so it needs acknowledgements, which
the settings for it switch on.
"""
