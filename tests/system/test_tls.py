"""MQTT over TLS: such listeners keep Twisted's own transport."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support import wire
from tests.support.nodes import NodeProcess, free_port, topology

LARGE = b"x" * 1_000_000


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for `localhost` that is signed with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_file, certificate_file = folder / "key.pem", folder / "certificate.pem"
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_file, certificate_file


def test_publish_over_tls(tmp_path: Path) -> None:
    """One client sends itself more than the kernel takes at once."""
    key, certificate = make_certificate(tmp_path)
    port = free_port()
    tls = f"ssl:{port}:interface=127.0.0.1:privateKey={key}:certKey={certificate}"
    document = topology("n", zone="") | {"mqtt": [tls]}
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        NodeProcess(tmp_path, document),
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(wire.connect("c") + wire.subscribe(1, ("t", 0)))
        client.sendall(wire.publish("t", LARGE))
        buffer, packets = bytearray(), []
        while len(packets) < 3:
            received = client.recv(65536)
            assert received
            buffer += received
            while (packet := wire.cut_packet(buffer)) is not None:
                packets.append(packet)
        kinds = [packet.kind for packet in packets]
        assert [wire.CONNACK, wire.SUBACK, wire.PUBLISH] == kinds
        assert packets[2].body.endswith(LARGE)
