"""What a PostgreSQL URL says: which server and database, what must not be printed, and whether the connection is a sure one."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass

from dperm._extras import needed

_EXPECTED = (
    "Expected the spend log's URL as postgresql://user@host/name, with %-codes for other characters than letters and digits in "
    "the user's name and the password (%40 for @, %25 for %, %20 for a blank)"
)
_SECRETS = ("password", "sslpassword")
#: Of hosts, ports and names of databases. Other characters come from a user's name or a password that was not encoded.
_PARTS = {
    "host": r"[\w.\-:,/]*",
    "hostaddr": r"[\w.\-:,]*",
    "port": r"[\d,]*",
    "dbname": r"[\w.\-+ $]*",
    "service": r"[\w.\-]*",
}


@dataclass(frozen=True)
class Server:
    """A database. Its `name` is a URL of host, port, database and service alone. The connection `is_sure` where it stays on this
    machine, or is encrypted and leads to nobody else. `secrets` are never printed.
    """

    name: str
    is_sure: bool
    secrets: tuple[str, ...] = ()

    @classmethod
    def of(cls, url: str) -> Server:
        """As the driver's own parser reads a URL, with what the environment adds to it. Errors as of `Postgres`."""
        with needed("psycopg", "A spend log in PostgreSQL"):
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        if not url.isprintable():  # the parser stops at a zero byte
            raise ValueError(f"{_EXPECTED}; got one with signs that cannot be printed.")
        try:
            stated = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except psycopg.Error:  # whose message quotes the part that is wrong
            raise ValueError(f"{_EXPECTED}; got one that PostgreSQL cannot read.") from None
        for part, form in _PARTS.items():
            if not re.fullmatch(form, stated.get(part, "")):
                raise ValueError(f"{_EXPECTED}; got one of which a part was taken for the {part}.")
        if stated.get("options"):  # dperm states its own, and a schema that is named here would silently be another one
            raise ValueError("Expected a spend log's URL without options=…: a user's schema is set on the server, by ALTER ROLE.")
        host = stated.get("host") or stated.get("hostaddr") or os.environ.get("PGHOST", "")
        port = stated.get("port") or os.environ.get("PGPORT", "")
        base = stated.get("dbname") or os.environ.get("PGDATABASE", "")
        mode = stated.get("sslmode") or os.environ.get("PGSSLMODE", "")
        service = stated.get("service") or os.environ.get("PGSERVICE", "")
        bracketed = f"[{host}]" if host.count(":") > 1 and "," not in host else host
        name = f"postgresql://{bracketed}{':' * bool(port)}{port}/{base}{'?service=' * bool(service)}{service}"
        reached = stated.get("hostaddr") or os.environ.get("PGHOSTADDR", "") or host  # where it leads, whatever its name
        sure = mode == "verify-full" or all(map(_is_here, reached.split(",")))
        if service:  # whose file may say anything of what the URL does not state
            sure = stated.get("sslmode") == "verify-full"
        return cls(name, sure, tuple(stated[secret] for secret in _SECRETS if stated.get(secret)))

    def without_secrets(self, text: str) -> str:
        """A message of the driver's, unless it quotes a secret: as a part of a longer word it stands there by chance."""
        quoted = any(re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", text) for secret in self.secrets)
        return "the driver's message quotes a secret" if quoted else text


def _is_here(host: str) -> bool:
    """Whether a host is this machine: a socket's folder, no host, or a loopback address."""
    if not host or host.startswith("/") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
