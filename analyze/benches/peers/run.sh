#!/bin/sh
# Measures `analyze import` beside its peers and limits on a trace: installs them into target/peers and runs bench.py.
#
# Usage: analyze/benches/peers/run.sh TRACE.json[.gz] [--rounds N] [--json OUT.json] [--analyze BINARY]
# Needs: python3 with pip, node and npm, gzip; cargo, unless the binary is named.
set -eu

. "$(dirname "$0")/../../../fixtures/parts.sh"

# Holistic Trace Analysis with what it imports (it would also bring a notebook server), and the fastest inflate and JSON
# parser that PyPI has.
PACKAGES="HolisticTraceAnalysis==0.5.0 pandas==3.1.1 numpy==2.4.6 plotly==7.1.0 narwhals==2.29.0 packaging==26.4
networkx==3.6.1 pydot==4.0.1 pyparsing==3.3.3 psutil==7.2.2 PyYAML==6.0.4 python-dateutil==4.0.0 six==1.17.0
isal==1.9.1 pysimdjson==7.0.2"

install_python() {
    # shellcheck disable=SC2086 # one argument a package
    pip_into_part $1
}

part python "$(echo $PACKAGES)"
"$root/fixtures/perfetto/setup.sh" engine
PYTHONPATH="$home/python" exec python3 "$here/bench.py" "$@"
