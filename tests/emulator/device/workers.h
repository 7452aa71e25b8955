// OS threads that share out numbered pieces of work: the blocks of a grid, the rows of a product. They are
// apart from the program's own threads because running a block overwrites thread-local storage.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace emulator {

class Workers {
public:
    static Workers& shared() {
        // Never destroyed: the program may end while another of its threads is in a call.
        static Workers* workers = new Workers();
        return *workers;
    }

    size_t count() const { return threads_.size(); }

    // Runs `work(piece)` for every piece below `pieces`, in no fixed order, and returns when all are done.
    void run(size_t pieces, const std::function<void(size_t piece)>& work) {
        std::lock_guard<std::mutex> one_at_a_time(callers_);
        std::unique_lock<std::mutex> lock(mutex_);
        work_ = &work;
        pieces_ = pieces;
        next_ = 0;
        busy_ = threads_.size();
        round_++;
        begin_.notify_all();
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    Workers() {
        const char* text = getenv("EMULATED_THREADS");
        const int count = text ? atoi(text) : 2;
        for (int i = 0; i == 0 || i < count; i++) {
            threads_.emplace_back([this] { serve(); });
        }
    }

    void serve() {
        unsigned long seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex_);
                begin_.wait(lock, [&] { return round_ != seen; });
                seen = round_;
            }
            for (size_t piece; (piece = next_++) < pieces_;) {
                (*work_)(piece);
            }
            std::lock_guard<std::mutex> lock(mutex_);
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex callers_, mutex_;
    std::condition_variable begin_, done_;
    const std::function<void(size_t)>* work_ = nullptr;
    size_t pieces_ = 0, busy_ = 0;
    std::atomic<size_t> next_{0};
    unsigned long round_ = 0;
    std::vector<std::thread> threads_;
};

}  // namespace emulator
