#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "nccl.h"

namespace {

const std::string PREFIX = "emulated-nccl-";

std::string parent() {
    const char* chosen = getenv("TMPDIR");
    return chosen != nullptr ? chosen : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

template <class Body>
void each_name(const std::string& folder, Body body) {
    DIR* entries = opendir(folder.c_str());
    if (entries == nullptr) return;
    while (const dirent* entry = readdir(entries)) body(std::string(entry->d_name));
    closedir(entries);
}

void remove_old() {
    each_name(parent(), [](const std::string& name) {
        if (name.compare(0, PREFIX.size(), PREFIX) != 0) return;
        const int maker = atoi(name.c_str() + PREFIX.size());
        if (maker > 0 && kill(maker, 0) != 0) Folder(parent() + "/" + name).remove_all();
    });
}

}  // namespace

std::string Folder::make() {
    remove_old();
    std::string path = parent() + "/" + PREFIX + std::to_string(getpid()) + "-XXXXXX";
    return mkdtemp(path.data()) != nullptr ? path : "";
}

bool Folder::has(const std::string& name) const { return access((path + "/" + name).c_str(), F_OK) == 0; }

bool Folder::write(const std::string& name, const void* bytes, size_t count) const {
    const std::string file = path + "/" + name, partial = file + ".new";
    {
        std::ofstream out(partial, std::ios::binary);
        out.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
        if (!out.flush()) return false;
    }
    return rename(partial.c_str(), file.c_str()) == 0;
}

std::string Folder::read(const std::string& name) const {
    std::ifstream in(path + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

void Folder::remove(const std::string& name) const { unlink((path + "/" + name).c_str()); }

void Folder::remove_all() const {
    each_name(path, [this](const std::string& name) { remove(name); });
    rmdir(path.c_str());
}
