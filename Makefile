# Two commands for a newcomer: `make demo` and `make test`. Everything behind them is CMake (see
# CMakePresets.json) and cmake/setup.sh.
PRESET ?= release
BUILD = $(if $(filter cpu,$(PRESET)),build-cpu,build)

.PHONY: setup build demo test keys
setup:
	@bash cmake/setup.sh

build: setup
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET)

demo: build
	$(BUILD)/axial train -c configs/fashion_mnist_cpu.yaml

test: build
	ctest --preset $(PRESET)

# The tables of keys in configs/README.md, after a change of app/config/schema.cpp.
keys: build
	$(BUILD)/axial config --markdown > $(BUILD)/keys.md
	sed -i -e '/^<!-- keys -->/,/^<!-- end of keys -->/{/^<!--/!d}' -e '/^<!-- keys -->/r $(BUILD)/keys.md' configs/README.md
