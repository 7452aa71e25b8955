// Device memory: reserved address space without storage.
#pragma once

#include <cstddef>

// A range of device memory, or null if the card has not enough left.
void *reserve(size_t bytes);

// Gives back a range; false if there is none at this address.
bool release(void *range);

bool is_device_memory(const void *pointer);

size_t bytes_in_use();

// Device memory without addresses; false if the card has not enough left.
bool take(size_t bytes);
void give_back(size_t bytes);

// Addresses, behind which memory that was taken can be mapped, or null; `release` frees them.
void *reserve_addresses(size_t bytes);
