// Runs a target once for each file that is named, without a fuzzer: with any compiler.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int count, char** names) {
    for (int number = 1; number < count; ++number) {
        std::ifstream file(names[number], std::ios::binary);
        const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
    }
    return 0;
}
