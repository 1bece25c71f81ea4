pytest_plugins = ["penstock_testing.fixtures"]
