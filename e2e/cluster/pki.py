"""Certificates and kubeconfigs for one cluster: its own CA, a client certificate for each component and person."""

import base64
import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=30)


@dataclass(frozen=True)
class Authority:
    """A CA, and the folder that everything it signs is written to."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path) -> "Authority":
        """A fresh one; writes ca.crt and the ServiceAccount key pair sa.key, sa.pub."""
        folder.mkdir(mode=0o700, parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("cluster-ca")
        certificate = (
            _certificate(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
        accounts = rsa.generate_private_key(65537, 2048)
        _write(folder / "sa.key", _pem(accounts))
        _write(
            folder / "sa.pub",
            accounts.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )
        return cls(folder, key, certificate)

    def server(self, name: str, hosts: tuple[str, ...], addresses: tuple[str, ...] = ()) -> None:
        """A serving certificate as `<name>.crt` and `<name>.key`, for loopback and these names and IP addresses."""
        ips = [x509.IPAddress(ipaddress.ip_address(one)) for one in {"127.0.0.1", *addresses}]
        names = [*ips, *(x509.DNSName(host) for host in hosts)]
        self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def kubeconfig(self, path: Path, server: str, user: str, group: str = "") -> Path:
        """A kubeconfig whose client certificate is that user and group."""
        stem = f"client-{path.stem}"
        self._issue(stem, _name(user, group), ExtendedKeyUsageOID.CLIENT_AUTH, [])
        data = {
            field: base64.b64encode((self.folder / file).read_bytes()).decode()
            for field, file in (
                ("certificate-authority-data", "ca.crt"),
                ("client-certificate-data", f"{stem}.crt"),
                ("client-key-data", f"{stem}.key"),
            )
        }
        ca = data.pop("certificate-authority-data")
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "local", "user": data}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
            "current-context": "local",
        }
        _write(path, yaml.safe_dump(document).encode())
        return path

    def _issue(
        self, stem: str, subject: x509.Name, purpose: x509.ObjectIdentifier, names: list[x509.GeneralName]
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _certificate(subject, self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            # Python 3.13 and later verify strictly and want it.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        _write(self.folder / f"{stem}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        _write(self.folder / f"{stem}.key", _pem(key))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(minutes=5),
        not_valid_after=now + LIFETIME,
    )


def _name(common: str, organisation: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)] if organisation else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    # The controller manager reads PKCS#1 and SEC1 only in part; "traditional" is what all of them read.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
