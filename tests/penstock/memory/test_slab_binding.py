"""One borrowed slab: over TCP, and as shared memory."""

from __future__ import annotations

import os
import threading

import pytest
from memory_stubs import DonorStub
from msgspec.structs import replace

from penstock.memory.slab_binding import RemoteSlab, SharedSlab, SlabLost, bind_slab

SLAB_BYTES = 12 << 20


@pytest.fixture
def donor(tmp_path):
    stub = DonorStub(tmp_path, slab_bytes=SLAB_BYTES, shared=True)
    yield stub
    stub.close()


def read(binding, offset, length):
    view = bytearray(length)
    binding.read_into(offset, memoryview(view))
    return bytes(view)


@pytest.mark.parametrize("kind", [RemoteSlab, SharedSlab])
def test_what_was_written_is_read_however_long_it_is(donor, kind):
    address = donor.lend()
    binding = kind(address)
    data = os.urandom(10_000_001)  # more frames than are under way at once
    binding.write(5, data)
    assert read(binding, 5, len(data)) == data
    assert donor.content(address)[5 : 5 + len(data)] == data
    binding.close()
    with pytest.raises(SlabLost, match="closed"):
        read(binding, 0, 1)


def test_a_donor_on_this_host_shares_its_memory(donor):
    binding = bind_slab(donor.lend())
    assert binding.kind == "shared"
    binding.close()


def test_memory_that_could_be_cut_off_is_not_shared(donor):
    donor.sealed = False
    binding = bind_slab(donor.lend())
    assert binding.kind == "tcp"
    binding.close()


def test_a_donor_of_another_boot_is_reached_over_tcp(donor):
    donor.shared = False
    binding = bind_slab(donor.lend())
    assert binding.kind == "tcp"
    binding.close()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hang", "no answer within"),
        ("drip", "no whole answer within"),
        ("hang_up", "hung up|reset"),
        ("half_frame", "hung up|reset"),
        ("wrong_crc", "checksum"),
        ("stale", "STALE"),
    ],
)
def test_whatever_goes_wrong_loses_the_slab_once_and_for_all(donor, fault, said):
    binding = RemoteSlab(donor.lend(), timeout_s=0.1)
    donor.fault, donor.fault_after = fault, 3  # in the middle of several frames
    with pytest.raises(SlabLost, match=said):
        read(binding, 0, 6 << 20)
    donor.fault = ""
    with pytest.raises(SlabLost, match="closed"):
        binding.write(0, b"x")


def test_a_wrong_token_is_refused_with_the_reason(donor):
    with pytest.raises(SlabLost, match="BAD_PROOF: there is no such lease"):
        bind_slab(replace(donor.lend(), token="0" * 64))


def test_a_donor_that_is_not_there_is_a_lost_slab(donor):
    address = donor.lend()
    donor.close()
    with pytest.raises(SlabLost, match=f"slab {address.slab} of donor"):
        bind_slab(address)


def test_shared_memory_that_was_taken_back_is_noticed_after_the_copy(donor):
    address = donor.lend()
    binding = SharedSlab(address)
    binding.write(0, b"mine")
    donor.take_back(address)
    with pytest.raises(SlabLost, match="took it back"):
        read(binding, 0, 4)


def test_closing_ends_a_read_that_waits_in_another_thread(donor):
    binding = RemoteSlab(donor.lend(), timeout_s=50)
    donor.fault = "hang"
    said = []

    def wait():
        with pytest.raises(SlabLost) as caught:
            read(binding, 0, 4096)
        said.append(str(caught.value))

    thread = threading.Thread(target=wait)
    thread.start()
    while not donor.faults_done:
        thread.join(0.005)
    binding.close()
    thread.join(10)
    assert "closed" in said[0]
