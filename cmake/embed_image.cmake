# SPDX-License-Identifier: Apache-2.0
# Writes C++ that defines kernel_image() as the bytes of the file IMAGE, to the file OUTPUT.
file(READ ${IMAGE} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"reshard/cuda/kernel_image.h\"
namespace reshard::cuda {
namespace {
alignas(64) constexpr unsigned char kImage[] = {${bytes}};
}
std::span<const std::byte> kernel_image() { return std::as_bytes(std::span(kImage)); }
}  // namespace reshard::cuda
")
