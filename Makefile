# Two commands do everything on a fresh machine with cargo: `make demo` and `make test`.

CARGO ?= cargo
ANALYZE = target/release/analyze
CAPTURE = target/release/capture

.PHONY: demo test soak fuzz fuzz-tape fuzz-import fuzz-python setup bpf peers capture-bench

demo: bpf ## the main job: an inference service is recorded live and shown, and sampling held against the truth; all in out/
	$(CARGO) build --release --bin analyze --bin make-fixture --bin capture
	$(CARGO) build --release -p ktape-inside
	mkdir -p out
	target/release/make-fixture decode-loop -o out/decode.ktape
	$(ANALYZE) compare out/decode.ktape --hz 100 --svg out/decode-compare.svg --force > out/decode-compare.txt
	$(CAPTURE) doctor || true # without privileges it says what is missing; then the library inside tells all
	LD_LIBRARY_PATH=$$(fixtures/simcuda/build.sh) $(CAPTURE) run --device-time cupti -o out/serve.ktape -- \
		python3 fixtures/workloads/serve.py --requests 60 --report out/serve.json
	$(ANALYZE) info out/serve.ktape > out/serve.txt
	$(ANALYZE) verify out/serve.ktape > out/serve-verify.txt
	$(ANALYZE) perfetto out/serve.ktape -o out/serve.pftrace --force
	$(ANALYZE) flamegraph out/serve.ktape -o out/serve.svg --force
	$(ANALYZE) compare out/serve.ktape --hz 100 > out/serve-compare.txt
	@echo
	@echo "A Python service on a stand-in for the GPU, recorded live, with the time of each kernel on the device; root or not:"
	@echo "out/serve.ktape          the tape; what is on it: less out/serve.txt, and that nothing is missing: less out/serve-verify.txt"
	@echo "out/serve.pftrace        the timeline: open it at ui.perfetto.dev, or run $(ANALYZE) open out/serve.ktape"
	@echo "out/serve.svg            GPU time by Python stack: open it in a browser"
	@echo "out/serve-compare.txt    what a 100 Hz profiler would have said of it"
	@echo "And a made-up decode loop:"
	@echo "out/decode-compare.txt   what a 100 Hz profiler would have said: less out/decode-compare.txt"
	@echo "out/decode-compare.svg   the same as a picture: open it in a browser"

test: setup ## everything that CI runs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	rm -f target/skipped.txt
	$(CARGO) build -p ktape-inside # a process loads it: no test's own dependency is a file where it is looked for
	KTAPE_REQUIRE_PERFETTO=1 KTAPE_REQUIRE_SECOND_READER=1 KTAPE_SKIPPED=$(CURDIR)/target/skipped.txt $(CARGO) test --workspace
	fixtures/workloads/build.sh
	fixtures/soak.py --seconds 30 --capture target/debug/capture --analyze target/debug/analyze --segment-time 4s --keep-size 24M
	$(MAKE) fuzz-tape
	@if [ -e target/skipped.txt ]; then echo; sort -u target/skipped.txt; fi

FUZZ_SECONDS ?= 20

fuzz: fuzz-tape fuzz-import fuzz-python ## a stranger's bytes to everything that reads, so many seconds for each; needs a C++ compiler

fuzz-tape:
	fixtures/fuzz.sh format block $(FUZZ_SECONDS)
	fixtures/fuzz.sh format tape $(FUZZ_SECONDS)

fuzz-import:
	fixtures/fuzz.sh analyze kineto $(FUZZ_SECONDS) fixtures/kineto
	python3 fixtures/nsys/seeds.py target/fuzz/seeds/nsys
	fixtures/fuzz.sh analyze nsys $(FUZZ_SECONDS) target/fuzz/seeds/nsys -max_len=65536

fuzz-python:
	fixtures/fuzz.sh capture python $(FUZZ_SECONDS)

setup: bpf ## for the tests: upstream's trace_processor and UI, and a browser; zstd for the second reader of tapes; CUDA and its clients
	fixtures/perfetto/setup.sh
	fixtures/tapes/setup.sh
	fixtures/simcuda/setup.sh
	fixtures/simcuda/build.sh
	fixtures/cupti/setup.sh || true # not to be had everywhere; then tests say SKIPPED
	fixtures/libcuda/setup.sh || true # likewise
	fixtures/pythons/setup.sh || true # likewise
	fixtures/wheels/setup.sh || true # likewise

bpf: ## what eBPF programs are compiled with, if it is not here
	capture/setup.sh


TRACE ?= ../shared/traces/facebookresearch+HolisticTraceAnalysis/tests/data/df_index_resolver/df_index_resolver.json.gz

peers: ## import beside other readers of such traces, on TRACE and on TRACE twenty times over; no part of `test`
	mkdir -p target/peers
	analyze/benches/peers/repeat.py $(TRACE) 20 target/peers/twenty-times.json
	analyze/benches/peers/run.sh $(TRACE) target/peers/twenty-times.json --json target/peers/result.json

SOAK_SECONDS ?= 3600

soak: bpf ## a node under load for SOAK_SECONDS, an hour: all is there, nothing grows; as root; no part of `test`, which has 30 seconds of it
	fixtures/simcuda/build.sh
	fixtures/workloads/build.sh
	$(CARGO) build --release --bin capture --bin analyze
	fixtures/soak.py --seconds $(SOAK_SECONDS)

capture-bench: bpf ## what recording costs, as root. BENCH="--only 'C loop'" for a part; no part of `test`
	fixtures/simcuda/build.sh
	fixtures/workloads/build.sh
	$(CARGO) bench -p ktape-capture --bench cost -- $(BENCH)
