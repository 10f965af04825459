# How the tests get a real browser and an accessibility checker. Sourced after lib.sh.
# shellcheck shell=bash

AXE="$CACHE/axe-playwright-0.1.8/axe_playwright_python/axe.min.js"

# need_browser: sets EDGEAGENT_TEST_CHROMIUM and EDGEAGENT_TEST_AXE for the tests in tests/browser,
# and EDGEAGENT_REQUIRE_BROWSER, so that none of them is skipped.
need_browser() {
  local program
  # fonts: a page without any has no text to look at, and its contrast cannot be judged
  need chromium fonts-dejavu-core fonts-liberation
  program="$(command -v chromium || command -v chromium-browser)" \
    || die "chromium was installed and is not on the PATH: name it in EDGEAGENT_TEST_CHROMIUM"
  # axe-core (MPL-2.0), packed in a wheel; nothing else of the wheel is used
  unpack_wheel axe-playwright-python 0.1.8 fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8 axe-playwright-0.1.8 \
    || die "axe-core could not be fetched from the package index: check the network and try again"
  export EDGEAGENT_TEST_CHROMIUM="${EDGEAGENT_TEST_CHROMIUM:-$program}" EDGEAGENT_TEST_AXE="$AXE"
  export EDGEAGENT_REQUIRE_BROWSER=1
}
