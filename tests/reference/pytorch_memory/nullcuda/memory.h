// Device memory: reserved address space without storage.
#pragma once

#include <cstddef>

// A range of device memory, or null if the card has not enough left.
void *reserve(size_t bytes);

// Gives back a range; false if there is none at this address.
bool release(void *range);

bool is_device_memory(const void *pointer);

size_t bytes_in_use();
