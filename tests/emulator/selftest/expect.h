// Failed expectations print their location and the test continues; `finish` returns the exit status.
#pragma once

#include <cstdio>
#include <string>

inline int& failed_expectations() {
    static int count = 0;
    return count;
}

inline void expect(bool holds, const std::string& what, const char* file, int line) {
    if (holds) return;
    failed_expectations()++;
    fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

#define EXPECT(condition) expect((condition), "not so: " #condition, __FILE__, __LINE__)
#define EXPECT_EQUAL(left, right)                                                                        \
    do {                                                                                                 \
        const auto expected_left = (left);                                                               \
        const auto expected_right = (right);                                                             \
        expect(expected_left == expected_right,                                                          \
               #left " is " + std::to_string(expected_left) + ", not " + std::to_string(expected_right), \
               __FILE__, __LINE__);                                                                      \
    } while (false)

inline int finish(const char* name) {
    if (failed_expectations() == 0) return 0;
    fprintf(stderr, "%s: %d expectations failed\n", name, failed_expectations());
    return 1;
}
