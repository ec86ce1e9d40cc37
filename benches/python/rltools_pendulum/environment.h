// Environment that the Python package of RLtools compiles: the pendulum of RLtools in C++.
#include <rl_tools/rl/environments/pendulum/operations_generic.h>

template <typename T, typename TI>
using ENVIRONMENT_FACTORY = rl_tools::rl::environments::Pendulum<rl_tools::rl::environments::pendulum::Specification<T, TI>>;
