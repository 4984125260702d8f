# Two commands for a newcomer: `make demo` and `make test`. Everything behind them is CMake (see
# CMakePresets.json) and cmake/setup.sh.
PRESET ?= release
BUILD = $(if $(filter cpu,$(PRESET)),build-cpu,build)

.PHONY: setup build demo test keys fuzz
setup:
	@bash cmake/setup.sh

build: setup
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET)

demo: build
	$(BUILD)/axial train -c configs/fashion_mnist_cpu.yaml

test: build
	ctest --preset $(PRESET)

# Each fuzz target for so many seconds, with clang: make fuzz FUZZ_SECONDS=300
FUZZ_SECONDS ?= 30
fuzz: setup
	cmake --preset fuzz
	cmake --build --preset fuzz
	tests/fuzz/run.sh build-fuzz $(FUZZ_SECONDS)

# The tables of keys in configs/README.md, after a change of app/config/schema.cpp.
keys: build
	$(BUILD)/axial config --markdown > $(BUILD)/keys.md
	sed -i -e '/^<!-- keys -->/,/^<!-- end of keys -->/{/^<!--/!d}' -e '/^<!-- keys -->/r $(BUILD)/keys.md' configs/README.md
