"""What is in the standard libraries, and what packages are called where their import is called otherwise."""

from __future__ import annotations

import re
import sys

# fmt: off

# Modules of the standard library, also those that newer versions dropped: a skill that uses one of them has
# another problem than an undeclared package.
PYTHON_MODULES = frozenset(sys.stdlib_module_names) | frozenset((
    "aifc", "asynchat", "asyncore", "audioop", "binhex", "cgi", "cgitb", "chunk", "crypt", "distutils",
    "formatter", "imghdr", "imp", "lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev",
    "parser", "pipes", "smtpd", "sndhdr", "spwd", "sunau", "symbol", "telnetlib", "tomllib", "uu",
    "xdrlib", "zoneinfo", "compression", "annotationlib", "__main__", "_typeshed",
    "skill_tools",  # what a granted run finds by itself
))

# import → names under which PyPI has it, in the spelling of `canonical`.
PYTHON_PACKAGES: dict[str, tuple[str, ...]] = {
    "attr": ("attrs",),
    "Bio": ("biopython",),
    "bs4": ("beautifulsoup4", "bs4"),
    "cairo": ("pycairo",),
    "Crypto": ("pycryptodome",),
    "cv2": ("opencv-python", "opencv-python-headless", "opencv-contrib-python"),
    "dateutil": ("python-dateutil",),
    "docx": ("python-docx",),
    "dotenv": ("python-dotenv",),
    "fitz": ("pymupdf",),
    "genai": ("google-genai",),
    "git": ("gitpython",),
    "google": ("google-genai", "google-auth", "google-cloud", "google-api-python-client", "protobuf"),
    "googleapiclient": ("google-api-python-client",),
    "jose": ("python-jose",),
    "jwt": ("pyjwt",),
    "lxml": ("lxml",),
    "magic": ("python-magic",),
    "markdown_it": ("markdown-it-py",),
    "mpl_toolkits": ("matplotlib",),
    "nacl": ("pynacl",),
    "OpenSSL": ("pyopenssl",),
    "osgeo": ("gdal",),
    "PIL": ("pillow",),
    "pkg_resources": ("setuptools",),
    "pptx": ("python-pptx",),
    "psycopg2": ("psycopg2", "psycopg2-binary"),
    "rdkit": ("rdkit", "rdkit-pypi"),
    "serial": ("pyserial",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "slugify": ("python-slugify",),
    "socks": ("pysocks",),
    "telegram": ("python-telegram-bot",),
    "umap": ("umap-learn",),
    "usb": ("pyusb",),
    "win32com": ("pywin32",),
    "wx": ("wxpython",),
    "yaml": ("pyyaml", "ruamel-yaml"),
    "zmq": ("pyzmq",),
}

NODE_MODULES = frozenset((
    "skill-tools",  # what a granted run finds by itself
    "assert", "async_hooks", "buffer", "child_process", "cluster", "console", "constants", "crypto",
    "dgram", "diagnostics_channel", "dns", "domain", "events", "fs", "http", "http2", "https",
    "inspector", "module", "net", "os", "path", "perf_hooks", "process", "punycode", "querystring",
    "readline", "repl", "stream", "string_decoder", "sys", "test", "timers", "tls", "trace_events", "tty",
    "url", "util", "v8", "vm", "wasi", "worker_threads", "zlib", "sqlite", "sea", "bun", "deno",
))

# Imports that are of no use without a network. A browser or a server may serve on loopback, so these count
# only where the whole purpose of the package is another machine.
PYTHON_NETWORK = frozenset((
    "requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "ftplib", "smtplib",
    "imaplib", "poplib", "telnetlib", "xmlrpc.client", "openai", "anthropic", "yfinance", "boto3",
    "botocore", "googleapiclient", "google.genai", "google.generativeai", "yt_dlp", "tweepy", "paramiko",
    "slack_sdk", "telegram", "web3", "pandas_datareader", "duckduckgo_search", "ddgs",
))
NODE_NETWORK = frozenset((
    "axios", "node-fetch", "got", "undici", "https", "superagent", "ky", "openai", "@anthropic-ai/sdk",
    "@google/genai", "ethers", "viem", "@solana/web3.js", "yahoo-finance2",
))
SHELL_NETWORK = [
    "curl", "wget", "ssh", "scp", "rsync", "gh", "gcloud", "aws", "az", "kubectl", "yt-dlp", "npx", "uvx",
    "brew", "ping", "nslookup", "dig", "ftp", "sftp",
]
SHELL_INSTALLERS = {
    "pip": "install", "pip3": "install", "npm": "install", "pnpm": "install", "yarn": "add", "apt": "install",
    "apt-get": "install", "git": "clone", "conda": "install", "cargo": "install", "go": "install",
}  # fmt: skip


def canonical(name: str) -> str:
    """A package's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()
