#include "settings.h"

#include <cstdio>

namespace {

// Aborts: a misspelt setting would make a test pass for the wrong reason.
[[noreturn]] void refuse(const char* name, const std::string& value) {
    fprintf(stderr, "emulated driver: %s=%s is not understood\n", name, value.c_str());
    abort();
}

std::string text(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
}

template <class T>
void read_number(const char* name, T& value) {
    const std::string written = text(name);
    if (written.empty()) return;
    char* end;
    value = static_cast<T>(strtoull(written.c_str(), &end, 10));
    if (*end != 0) refuse(name, written);
}

}  // namespace

Settings::Settings() {
    read_number("EMULATED_MEMORY", memory);
    read_number("EMULATED_POOL_STEP", pool_step);
    read_number("EMULATED_POOL_PACKS", pool_packs);
    if (pool_step == 0) refuse("EMULATED_POOL_STEP", text("EMULATED_POOL_STEP"));
    read_number("EMULATED_DEVICES", devices);
    read_number("EMULATED_DRIVER", driver);

    const std::string capability = text("EMULATED_CAPABILITY");
    if (!capability.empty() && sscanf(capability.c_str(), "%d.%d", &major, &minor) != 2) {
        refuse("EMULATED_CAPABILITY", capability);
    }

    const std::string written_delay = text("EMULATED_DELAY");
    if (!read_delay(written_delay)) refuse("EMULATED_DELAY", written_delay);

    std::string rest = text("EMULATED_FAIL");
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        const std::string one = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        char function[100];
        PlannedFailure failure{};
        if (sscanf(one.c_str(), "%99[^:]:%lu:%d", function, &failure.call, &failure.code) != 3) {
            refuse("EMULATED_FAIL", one);
        }
        failure.function = function;
        failures.push_back(failure);
    }
}

bool Settings::read_delay(const std::string& written) {
    if (written.empty() || written == "none") {
        delay = NOTHING;
    } else if (written == "compute") {
        delay = FIRST_STREAM;
    } else if (written == "copy") {
        delay = SECOND_STREAM;
    } else if (written == "communication") {
        delay = PRIORITY_STREAM;
    } else if (written == "all") {
        delay = EVERY_STREAM;
    } else if (sscanf(written.c_str(), "random:%lu", &delay_seed) == 1) {
        delay = BY_CHANCE;
    } else {
        return false;
    }
    return true;
}

// Sets EMULATED_DELAY for the streams created from now on. Not part of a CUDA driver: tests that use several delays in
// one process look it up by name. Returns 0, or 1 for an invalid value.
CUDA_API emulated_delay(const char* written) {
    return static_cast<CUresult>(Settings::current().read_delay(written) ? 0 : 1);
}
