#include "c10d/life/hooks.h"

namespace fastcomm {

std::function<void()> g_interrupt_check;
std::function<std::string(bool)> g_failure;

}  // namespace fastcomm
