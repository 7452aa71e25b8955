// Thread pool that distributes numbered pieces of work: the blocks of a grid, the rows of a matmul. The caller is one
// of the threads: waking another for a single block takes longer than most blocks do.
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

    // Includes the caller.
    size_t count() const { return 1 + threads_.size(); }

    // Runs `work(piece)` for every piece below `pieces`, in no fixed order, and returns when all are done.
    void run(size_t pieces, const std::function<void(size_t piece)>& work) {
        if (pieces == 1 || threads_.empty()) {
            for (size_t piece = 0; piece < pieces; piece++) work(piece);
            return;
        }
        std::lock_guard<std::mutex> one_at_a_time(callers_);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            pieces_ = pieces;
            next_ = 0;
        }
        begin_.notify_all();
        take_pieces();
        // Waits only for the threads that took a piece.
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
        pieces_ = 0;
    }

private:
    Workers() {
        const char* text = getenv("EMULATED_THREADS");
        const int count = text ? atoi(text) : 2;
        for (int i = 1; i < count; i++) {
            threads_.emplace_back([this] { serve(); });
        }
    }

    void take_pieces() {
        for (size_t piece; (piece = next_++) < pieces_;) {
            (*work_)(piece);
        }
    }

    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            begin_.wait(lock, [this] { return next_ < pieces_; });
            busy_++;
            lock.unlock();
            take_pieces();
            lock.lock();
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex callers_, mutex_;
    std::condition_variable begin_, done_;
    const std::function<void(size_t)>* work_ = nullptr;
    size_t pieces_ = 0, busy_ = 0;
    std::atomic<size_t> next_{0};
    std::vector<std::thread> threads_;
};

}  // namespace emulator
