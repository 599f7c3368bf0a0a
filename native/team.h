// A team of threads that runs one job at a time, together, with cheap barriers inside it.
//
// Workers spin for a moment after a job, since the next step usually comes at once, then park in the kernel.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace outrider {

class Team {
public:
    explicit Team(int threads) : size_(positive(threads)), places_(new Place[size_t(threads)]) {
        try {
            for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
        } catch (...) {  // the system has no more threads to give
            stop();
            throw;
        }
    }

    ~Team() { stop(); }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Runs job(thread index) on every thread of the team, the caller being thread 0, and waits for all.
    // Throws std::runtime_error in a process forked from the one that made the team: its workers are not there.
    void run(const std::function<void(int)>& job) {
        if (size_ > 1 && getpid() != process_)
            throw std::runtime_error("the model was loaded before this process was forked; load it in this process");
        job_ = &job;
        start();
        job(0);
        barrier(0);
    }

    // Waits until every thread of the running job has come here; what they wrote before is then visible to all.
    // Each thread only writes its own cache line: one transfer between two processors, where a shared counter takes three.
    void barrier(int thread) {
        if (size_ == 1) return;
        const uint32_t round = places_[thread].round.load(std::memory_order_relaxed) + 1;
        places_[thread].round.store(round, std::memory_order_release);
        for (int other = 0; other < size_; ++other)
            for (int spins = 0; int32_t(places_[other].round.load(std::memory_order_acquire) - round) < 0; ++spins)
                pause(spins);
    }

private:
    static void pause(int spins) {
        if (spins % 4096 == 4095) return std::this_thread::yield();  // more threads than processors: let others run
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    static int positive(int threads) {
        if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
        return threads;
    }

    void stop() {
        if (getpid() != process_) {  // a forked process has no workers to wait for
            for (std::thread& worker : workers_) worker.detach();
            return;
        }
        stopping_ = true;
        start();
        for (std::thread& worker : workers_) worker.join();
    }

    // Waiting for the next job: many pauses between looks, since a processor that shares its core with this one may be
    // the one that prepares the job.
    static void rest() {
#if defined(__x86_64__)
        for (int i = 0; i < 16; ++i) __builtin_ia32_pause();
#endif
    }

    void start() {
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }

    void work(int index) {
        constexpr int kSpins = 2000;  // some 0.3 to 0.5 ms
        uint32_t seen = 0;
        for (;;) {
            for (int spins = 0; spins < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spins) rest();
            epoch_.wait(seen, std::memory_order_acquire);
            ++seen;
            if (stopping_) return;
            (*job_)(index);
            barrier(index);
        }
    }

    struct alignas(64) Place {
        std::atomic<uint32_t> round = 0;  // barriers that the thread has come to
    };

    const int size_;
    const std::unique_ptr<Place[]> places_;
    std::vector<std::thread> workers_;
    const std::function<void(int)>* job_ = nullptr;
    const pid_t process_ = getpid();
    std::atomic<bool> stopping_ = false;
    alignas(64) std::atomic<uint32_t> epoch_ = 0;
};

}  // namespace outrider
