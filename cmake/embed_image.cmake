# SPDX-License-Identifier: Apache-2.0
# Writes C++ that defines kernel_images() as the bytes of the files MAIN and PORTABLE, to the file OUTPUT.
foreach(image MAIN PORTABLE)
  file(READ ${${image}} ${image} HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," ${image} "${${image}}")
endforeach()
file(WRITE ${OUTPUT} "#include \"reshard/cuda/kernel_image.h\"
namespace reshard::cuda {
namespace {
alignas(64) constexpr unsigned char kMain[] = {${MAIN}};
alignas(64) constexpr unsigned char kPortable[] = {${PORTABLE}};
}
KernelImages kernel_images() { return {std::as_bytes(std::span(kMain)), std::as_bytes(std::span(kPortable))}; }
}  // namespace reshard::cuda
")
